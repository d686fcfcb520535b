#include "core/holder_id.hpp"

#include <sys/random.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <system_error>

#include "core/fork_detection.hpp"

namespace fenceguard {
namespace {

constexpr std::size_t holder_bytes = 16;

/// Random bytes fetched ahead: one system call for many grants.
class random_pool {
 public:
  template <std::size_t N>
  std::array<unsigned char, N> take() {
    auto const process = process_generation();
    if (process != process_ || used_ + N > bytes_.size()) {
      refill();
      process_ = process;
    }
    std::array<unsigned char, N> taken{};
    std::memcpy(taken.data(), bytes_.data() + used_, N);
    used_ += N;
    return taken;
  }

 private:
  void refill() {
    std::size_t filled = 0;
    while (filled < bytes_.size()) {
      auto const got = ::getrandom(bytes_.data() + filled, bytes_.size() - filled, 0);
      if (got < 0) {
        if (errno == EINTR) continue;
        used_ = bytes_.size();
        throw std::system_error{errno, std::generic_category(), "getrandom"};
      }
      filled += static_cast<std::size_t>(got);
    }
    used_ = 0;
  }

  std::array<unsigned char, 64 * holder_bytes> bytes_{};
  std::size_t used_ = bytes_.size();
  std::uint64_t process_ = 0;
};

thread_local random_pool pool;

}  // namespace

std::string new_holder_id() {
  static constexpr char digits[] = "0123456789abcdef";
  std::string id(2 * holder_bytes, '0');
  auto const bits = pool.take<holder_bytes>();
  for (std::size_t i = 0; i < holder_bytes; ++i) {
    id[2 * i] = digits[bits[i] >> 4U];
    id[2 * i + 1] = digits[bits[i] & 0xFU];
  }
  return id;
}

std::chrono::nanoseconds random_part_of(std::chrono::nanoseconds pause) {
  std::uint32_t random = 0;
  auto const bits = pool.take<sizeof random>();
  std::memcpy(&random, bits.data(), sizeof random);
  auto const share = static_cast<double>(random) / 4294967296.0;
  auto const whole = static_cast<double>(std::max<std::chrono::nanoseconds::rep>(pause.count(), 0));
  return std::chrono::nanoseconds{static_cast<std::chrono::nanoseconds::rep>(whole * share)};
}

std::chrono::nanoseconds with_jitter(std::chrono::nanoseconds pause) {
  auto const half = std::max(pause / 2, std::chrono::nanoseconds{0});
  return half + random_part_of(half);
}

}  // namespace fenceguard
