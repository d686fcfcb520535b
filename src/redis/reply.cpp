// The only file that knows hiredis, and all that is used of it is its parser: its connections have
// no absolute deadlines, and before 1.0 neither a bounded connect on every path nor MSG_NOSIGNAL.
#include "redis/reply.hpp"

#if __has_include(<hiredis/hiredis.h>)
#include <hiredis/hiredis.h>
#else
#include <hiredis.h>  // pkg-config's include path ends in hiredis/
#endif

#include <charconv>
#include <new>
#include <utility>

namespace fenceguard::redis {

reply_kind reply_view::kind() const noexcept {
  if (raw_ == nullptr) return reply_kind::none;
  switch (raw_->type) {
    case REDIS_REPLY_STRING:
      return reply_kind::text;
    case REDIS_REPLY_STATUS:
      return reply_kind::status;
    case REDIS_REPLY_INTEGER:
      return reply_kind::integer;
    case REDIS_REPLY_NIL:
      return reply_kind::nil;
    case REDIS_REPLY_ERROR:
      return reply_kind::error;
    case REDIS_REPLY_ARRAY:
      return reply_kind::array;
    default:
      return reply_kind::other;
  }
}

std::string_view reply_view::text() const noexcept {
  switch (kind()) {
    case reply_kind::text:
    case reply_kind::status:
    case reply_kind::error:
      return {raw_->str, static_cast<std::size_t>(raw_->len)};
    default:
      return {};
  }
}

std::string_view reply_view::error_code() const noexcept {
  return is_error() ? text().substr(0, text().find(' ')) : std::string_view{};
}

std::optional<std::int64_t> reply_view::integer() const noexcept {
  if (kind() == reply_kind::integer) return raw_->integer;
  if (kind() != reply_kind::text) return std::nullopt;
  auto const digits = text();
  std::int64_t value = 0;
  auto const [end, fault] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (fault != std::errc{} || end != digits.data() + digits.size()) return std::nullopt;
  return value;
}

std::size_t reply_view::size() const noexcept { return is_array() ? raw_->elements : 0; }

reply_view reply_view::operator[](std::size_t index) const noexcept {
  return index < size() ? reply_view{raw_->element[index]} : reply_view{};
}

std::string reply_view::describe() const {
  switch (kind()) {
    case reply_kind::none:
      return "no reply";
    case reply_kind::nil:
      return "nil";
    case reply_kind::integer:
      return "integer " + std::to_string(raw_->integer);
    case reply_kind::array: {
      auto result = "array of " + std::to_string(size());
      if (size() > 0) result += " [" + (*this)[0].describe() + (size() > 1 ? ", ...]" : "]");
      return result;
    }
    case reply_kind::text:
    case reply_kind::status:
    case reply_kind::error: {
      constexpr std::size_t shown = 200;
      auto result = std::string{is_error() ? "error" : "text"} + " '";
      result += text().substr(0, shown);
      return result + (text().size() > shown ? "...'" : "'");
    }
    case reply_kind::other:
      break;
  }
  return "reply of type " + std::to_string(raw_->type);
}

reply& reply::operator=(reply&& other) noexcept {
  reply old{std::move(*this)};
  raw_ = other.release();
  return *this;
}

reply::~reply() {
  if (raw_ != nullptr) freeReplyObject(const_cast<redisReply*>(raw_));
}

redisReply const* reply::release() noexcept { return std::exchange(raw_, nullptr); }

reply_parser::reply_parser() : reader_{redisReaderCreate()} {
  if (reader_ == nullptr) throw std::bad_alloc{};
}

reply_parser::~reply_parser() { redisReaderFree(reader_); }

void reply_parser::feed(char const* bytes, std::size_t size) noexcept {
  redisReaderFeed(reader_, bytes, size);  // a failure is kept in the reader and shows in parse()
}

reply_parser::state reply_parser::parse(reply& next) noexcept {
  void* raw = nullptr;
  if (redisReaderGetReply(reader_, &raw) != REDIS_OK) return state::broken;
  if (raw == nullptr) return state::incomplete;
  next = reply{static_cast<redisReply*>(raw)};
  return state::complete;
}

std::string reply_parser::error() const { return reader_->errstr; }

}  // namespace fenceguard::redis
