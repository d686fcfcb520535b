#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

struct redisReply;
struct redisReader;

namespace fenceguard::redis {

/// What one reply, or one element of an array, is.
enum class reply_kind { none, text, status, integer, nil, error, array, other };

/// Looks at a reply that somebody else owns. Accessors never throw: one that does not fit the kind
/// says so by an empty answer, so that a reply of an unexpected shape can be reported as such.
class reply_view {
 public:
  reply_view() noexcept = default;

  /// `none` where there is no reply: the default, or an element that does not exist.
  [[nodiscard]] reply_kind kind() const noexcept;
  [[nodiscard]] bool is_error() const noexcept { return kind() == reply_kind::error; }
  [[nodiscard]] bool is_nil() const noexcept { return kind() == reply_kind::nil; }
  [[nodiscard]] bool is_array() const noexcept { return kind() == reply_kind::array; }

  /// The text of a bulk string, a status or an error; empty for everything else.
  [[nodiscard]] std::string_view text() const noexcept;
  /// The first word of an error, for example `NOSCRIPT`; empty for everything else.
  [[nodiscard]] std::string_view error_code() const noexcept;
  /// An integer, or a bulk string that is a whole decimal number and nothing else.
  [[nodiscard]] std::optional<std::int64_t> integer() const noexcept;

  /// Elements of an array; 0 for everything else.
  [[nodiscard]] std::size_t size() const noexcept;
  /// An element of an array, valid as long as the reply; beyond the end, one of kind `none`.
  [[nodiscard]] reply_view operator[](std::size_t index) const noexcept;

  /// For messages: kind and beginning of the text. Not for parsing.
  [[nodiscard]] std::string describe() const;

 protected:
  explicit reply_view(redisReply const* raw) noexcept : raw_{raw} {}

  redisReply const* raw_ = nullptr;
};

/// Owns one reply. A moved-from reply is of kind `none`.
class reply : public reply_view {
 public:
  reply() noexcept = default;
  /// Takes over what hiredis allocated.
  explicit reply(redisReply* raw) noexcept : reply_view{raw} {}
  reply(reply&& other) noexcept : reply_view{other.release()} {}
  reply& operator=(reply&& other) noexcept;
  reply(reply const&) = delete;
  reply& operator=(reply const&) = delete;
  ~reply();

 private:
  redisReply const* release() noexcept;
};

/// Cuts a byte stream into replies. Belongs to one thread at a time.
class reply_parser {
 public:
  reply_parser();
  ~reply_parser();
  reply_parser(reply_parser const&) = delete;
  reply_parser& operator=(reply_parser const&) = delete;

  enum class state { complete, incomplete, broken };

  void feed(char const* bytes, std::size_t size) noexcept;
  /// `complete`: `next` holds the next reply. `incomplete`: more bytes are needed. `broken`: the
  /// stream is no RESP, see error(); nothing more can be read from it.
  [[nodiscard]] state parse(reply& next) noexcept;
  [[nodiscard]] std::string error() const;

 private:
  redisReader* reader_;
};

}  // namespace fenceguard::redis
