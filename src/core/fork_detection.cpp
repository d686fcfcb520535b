#include "core/fork_detection.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <new>
#include <utility>

namespace fenceguard {
namespace {

using generation = std::atomic<std::uint64_t>;

/// Zero in every new process; null where the kernel cannot do that.
generation* make_wiped_page() noexcept {
#ifdef MADV_WIPEONFORK
  auto const size = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  void* const page =
      ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return nullptr;
  if (::madvise(page, size, MADV_WIPEONFORK) == 0) return new (page) generation{0};
  ::munmap(page, size);
#endif
  return nullptr;
}

struct abandoned {
  std::shared_ptr<void> object;
  abandoned* next;
};

generation last_generation{0};
std::atomic<abandoned*> abandoned_objects{nullptr};

}  // namespace

std::uint64_t process_generation() noexcept {
  static generation* const wiped = make_wiped_page();
  if (wiped == nullptr) return static_cast<std::uint64_t>(::getpid());
  auto current = wiped->load(std::memory_order_relaxed);
  if (current != 0) return current;
  auto const next = last_generation.fetch_add(1) + 1;
  return wiped->compare_exchange_strong(current, next) ? next : current;
}

void abandon_in_child(std::shared_ptr<void> object) noexcept {
  if (!object) return;
  auto* const kept = new abandoned{std::move(object), abandoned_objects.load()};
  while (!abandoned_objects.compare_exchange_weak(kept->next, kept)) {
  }
}

}  // namespace fenceguard
