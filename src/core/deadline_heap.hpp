#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "core/grant_record.hpp"

namespace fenceguard {

/// Grants ordered by a point of time, the earliest on top. Each grant knows its place (`Index`), so
/// that one that is released leaves at once: nothing is left behind that would have to be skipped
/// later. A new deadline is mostly the latest of all and stays where it was put.
///
/// Not locked; does not own the grants.
template <std::uint32_t grant::record::*Index>
class deadline_heap {
 public:
  struct entry {
    time_point when;
    grant::record* who;
  };

  [[nodiscard]] bool empty() const noexcept { return entries_.empty(); }
  [[nodiscard]] entry const& top() const noexcept { return entries_.front(); }

  void add(grant::record& who, time_point when) {
    entries_.push_back({when, &who});
    place(entries_.size() - 1, entries_.back());
    rise(entries_.size() - 1);
  }

  /// Nothing happens where it is not there.
  void remove(grant::record& who) noexcept {
    if (who.*Index == grant::record::not_scheduled) return;
    std::size_t const hole = who.*Index;
    who.*Index = grant::record::not_scheduled;
    entry const last = entries_.back();
    entries_.pop_back();
    if (hole == entries_.size()) return;
    place(hole, last);
    rise(hole);
    sink(last.who->*Index);
  }

  /// Adds it, or moves it to another time.
  void set(grant::record& who, time_point when) {
    remove(who);
    add(who, when);
  }

 private:
  void place(std::size_t at, entry const& what) noexcept {
    entries_[at] = what;
    what.who->*Index = static_cast<std::uint32_t>(at);
  }

  void rise(std::size_t at) noexcept {
    entry const moved = entries_[at];
    while (at > 0 && moved.when < entries_[(at - 1) / 2].when) {
      place(at, entries_[(at - 1) / 2]);
      at = (at - 1) / 2;
    }
    place(at, moved);
  }

  void sink(std::size_t at) noexcept {
    entry const moved = entries_[at];
    for (;;) {
      std::size_t child = 2 * at + 1;
      if (child >= entries_.size()) break;
      if (child + 1 < entries_.size() && entries_[child + 1].when < entries_[child].when) ++child;
      if (!(entries_[child].when < moved.when)) break;
      place(at, entries_[child]);
      at = child;
    }
    place(at, moved);
  }

  std::vector<entry> entries_;
};

}  // namespace fenceguard
