#pragma once

#include <chrono>
#include <fenceguard/core/clock.hpp>
#include <fenceguard/core/fencing_token.hpp>
#include <fenceguard/core/grant.hpp>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>

namespace fenceguard {

/// Who holds a resource, as the store has it.
struct holder_info {
  std::string holder{};                           ///< 32 hexadecimal characters.
  std::optional<fencing_token> token{};           ///< None while a grant has not been numbered yet.
  std::chrono::system_clock::time_point since{};  ///< By the store's clock.
  std::chrono::milliseconds remaining{0};         ///< Until it runs out without renewal.
  std::string label{};
};

/// What a lease store has to be able to do: one short conversation with its servers for each call.
/// Waiting, renewal, deadlines, loss and the release of forgotten leases are the engine's
/// (src/core/lease_engine.cpp) and are the same for every store.
///
/// Each call is bounded by an absolute `deadline` and honours it within some milliseconds. Calls
/// come from several threads at once. "Unknown" is an answer of its own: a request that was sent
/// and not answered may have been applied.
class lease_backend {
 public:
  struct attempt {
    std::string_view resource;
    std::string_view holder;
    std::string_view label;
    std::chrono::milliseconds ttl;
    time_point deadline;
  };
  struct granted {
    fencing_token token;
    time_point sent_at;  ///< Taken before the request that started the ttl was sent.
    /// What is known to be left of the ttl, where the store knows less than all of it to be safe
    /// (a quorum's clock drift). Counted from sent_at.
    std::chrono::milliseconds validity;
  };
  struct busy {
    std::chrono::milliseconds remaining;  ///< Of the present holder; zero where not known.
  };
  /// Not granted and not busy: try again after `pause` (another caller is fetching tokens).
  struct again {
    std::chrono::milliseconds pause;
  };
  /// Surely not applied (refused, or never sent): nothing to undo.
  struct not_applied {
    std::string reason;
  };
  /// May have been applied: the engine undoes it.
  struct unknown {
    std::string reason;
  };
  using acquire_answer = std::variant<granted, busy, again, not_applied, unknown>;

  enum class renew_answer {
    renewed,
    lost,     ///< Another holder has it, or nobody, by the word of a server that may say so.
    unknown,  ///< No answer, or a refusal that says nothing about the lease: try again.
  };
  struct renew_item {
    std::string_view resource;
    std::string_view holder;
    std::chrono::milliseconds ttl;
    renew_answer answer = renew_answer::unknown;
    time_point sent_at{};  ///< Taken before the request was sent; meaningful where renewed.
    std::chrono::milliseconds validity{0};  ///< As in granted.
  };

  struct advanced {
    fencing_token token;
  };
  struct lost {};
  using advance_answer = std::variant<advanced, lost, not_applied, unknown>;

  /// Called with the name of a resource that may have become free. Any thread; never blocks.
  using hint_sink = std::function<void(std::string_view resource)>;

  virtual ~lease_backend() = default;

  /// One try to take the lease. Throws only what trying again cannot mend (invalid_request,
  /// schema_mismatch) or token_source_unavailable; nothing is held then.
  [[nodiscard]] virtual acquire_answer try_acquire(attempt const& what) = 0;

  /// Extends the leases that still belong to their holders; never takes one again. Fills `answer`,
  /// `sent_at` and `validity` of each item; a `validity` left at zero means that nothing was won.
  /// Called from one thread at a time, with at most 1024 items. Does not throw.
  virtual void renew(std::span<renew_item> batch, time_point deadline) noexcept = 0;

  /// Deletes the lease if it still belongs to `holder`. Also undoes an unknown acquisition. Does
  /// not throw.
  [[nodiscard]] virtual release_outcome release(std::string_view resource, std::string_view holder,
                                                time_point deadline) noexcept = 0;

  /// A fresh token for a grant that still holds, higher than its last and than `above`. Throws as
  /// try_acquire() does.
  [[nodiscard]] virtual advance_answer advance(std::string_view resource, std::string_view holder,
                                               std::optional<fencing_token> above,
                                               time_point deadline) = 0;

  /// Who holds the resource. Throws lease_store_unavailable.
  [[nodiscard]] virtual std::optional<holder_info> inspect(std::string_view resource,
                                                           time_point deadline) = 0;

  /// Hints are optional: a store that has none is polled. Told when somebody begins to wait for a
  /// resource and when nobody does any more, one call at a time; must not wait for an answer.
  virtual void watch(std::string const& /*resource*/) {}
  virtual void unwatch(std::string const& /*resource*/) noexcept {}
  /// How long a waiter for a watched resource may go without asking, at most, because a hint would
  /// come when it becomes free; nothing where none might. Polling never ends altogether: a hint can
  /// be lost. Must not wait for anything.
  [[nodiscard]] virtual std::optional<std::chrono::milliseconds> poll_interval(
      std::string_view /*resource*/) const noexcept {
    return std::nullopt;
  }
  /// Called once, before any other call. The sink outlives the backend.
  virtual void set_hint_sink(hint_sink /*sink*/) {}

  /// Ends background work and makes pending calls return soon. Called once, by the store's
  /// destructor, while other calls may be under way; leases may still be released afterwards.
  virtual void close() noexcept {}

 protected:
  lease_backend() = default;
  lease_backend(lease_backend const&) = default;
  lease_backend& operator=(lease_backend const&) = default;
};

}  // namespace fenceguard
