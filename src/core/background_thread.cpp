#include "core/background_thread.hpp"

#include <pthread.h>
#include <signal.h>

#include <utility>

namespace fenceguard {
namespace {

class all_signals_blocked {
 public:
  all_signals_blocked() noexcept {
    sigset_t all;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~all_signals_blocked() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  all_signals_blocked(all_signals_blocked const&) = delete;
  all_signals_blocked& operator=(all_signals_blocked const&) = delete;

 private:
  sigset_t before_{};
};

}  // namespace

background_thread::~background_thread() { finish(); }

void background_thread::start(std::function<void()> body) {
  all_signals_blocked const during_start;  // a new thread inherits the mask
  thread_ = std::thread{std::move(body)};
}

void background_thread::finish() noexcept {
  if (!thread_.joinable()) return;
  if (thread_.get_id() == std::this_thread::get_id()) {
    thread_.detach();
  } else {
    thread_.join();
  }
}

}  // namespace fenceguard
