#pragma once

#include <cstdint>
#include <memory>

namespace fenceguard {

/// A number that is the same in one process for its whole life, and another one in each forked
/// child (also where the child was made by clone() or _Fork(), which run no pthread_atfork
/// handlers). Takes no lock and, where the kernel wipes pages on fork (Linux 4.14), makes no system
/// call.
[[nodiscard]] std::uint64_t process_generation() noexcept;

/// Gives up ownership for ever, in a forked child, where destroying the object would wait for
/// threads that do not exist there or disturb the parent. Stays reachable, so that leak checkers
/// are content.
void abandon_in_child(std::shared_ptr<void> object) noexcept;

}  // namespace fenceguard
