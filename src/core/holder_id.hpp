#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

namespace fenceguard {

/// Characters of a holder.
inline constexpr std::size_t holder_size = 32;

/// 128 random bits from getrandom(2) as 32 hexadecimal characters. Any thread; never the same in a
/// forked child. Throws std::system_error where the system has no random numbers.
[[nodiscard]] std::string new_holder_id();

/// A random duration between the half and the whole of `pause`, so that those who began to wait
/// together do not ask together.
[[nodiscard]] std::chrono::nanoseconds with_jitter(std::chrono::nanoseconds pause);

/// A random duration up to `pause`: many who draw at the same moment are spread over all of it.
[[nodiscard]] std::chrono::nanoseconds random_part_of(std::chrono::nanoseconds pause);

}  // namespace fenceguard
