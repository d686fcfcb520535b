#pragma once

#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <thread>
#include <vector>

namespace fenceguard::bench {

using call_fn = std::function<bool()>;

struct rate {
  double calls;         // per second
  double microseconds;  // of this process's processor time per call
};

inline double processor_seconds() {
  rusage used{};
  ::getrusage(RUSAGE_SELF, &used);
  return static_cast<double>(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
         static_cast<double>(used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6;
}

// How often `threads` threads together get through the call that `make(thread)` gives each of them.
// A call that says false ends the program: a figure that counts failures would be worth nothing.
inline rate measure(int threads, double seconds, std::function<call_fn(int)> const& make) {
  std::atomic<bool> stop = false;
  std::atomic<int> ready = 0;
  std::atomic<bool> go = false;
  std::vector<std::uint64_t> counts(static_cast<std::size_t>(threads) * 16);
  std::vector<std::thread> all;
  for (int i = 0; i < threads; ++i) {
    all.emplace_back([&, i] {
      auto const call = make(i);
      if (!call()) std::abort();
      ++ready;
      go.wait(false);
      std::uint64_t count = 0;
      while (!stop.load(std::memory_order_relaxed)) {
        if (!call()) std::abort();
        ++count;
      }
      counts[static_cast<std::size_t>(i) * 16] = count;
    });
  }
  while (ready < threads) std::this_thread::sleep_for(std::chrono::milliseconds{1});
  auto const start = std::chrono::steady_clock::now();
  auto const processor_before = processor_seconds();
  go = true;
  go.notify_all();
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  stop = true;
  std::chrono::duration<double> const took = std::chrono::steady_clock::now() - start;
  for (auto& one : all) one.join();
  auto const processor = processor_seconds() - processor_before;
  double total = 0;
  for (auto one : counts) total += static_cast<double>(one);
  return {total / took.count(), processor * 1e6 / total};
}

template <class Seen, class Of>
double median(std::vector<Seen> const& seen, Of of) {
  std::vector<double> values;
  for (auto const& one : seen) values.push_back(of(one));
  auto const middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace fenceguard::bench
