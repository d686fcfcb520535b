#include "redis/connection.hpp"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <fenceguard/core/errors.hpp>
#include <utility>

#include "redis/login.hpp"
#include "redis/parking.hpp"

namespace fenceguard::redis {

using namespace std::chrono_literals;

namespace {

constexpr parking::word told_done = 1;
constexpr parking::word told_to_lead = 2;

constexpr std::size_t least_portion = 4;
constexpr std::size_t longest_batch_bytes = 64 * 1024;
constexpr std::size_t receive_size = 16 * 1024;

// After this long without traffic it costs nothing that shows to ask whether the server has closed
// the connection meanwhile. So the first call after a restart is sent on a new one instead of
// ending as `unknown`.
constexpr std::chrono::nanoseconds idle_before_check = 1ms;

std::string milliseconds(std::chrono::milliseconds time) {
  return std::to_string(time.count()) + " ms";
}

}  // namespace

struct connection::entry {
  enum class state { waiting, queued, in_flight, finished };

  std::string_view wire;
  waiter* owner = nullptr;
  state where = state::waiting;
  bool sent_again = false;
  std::uint64_t serial = 0;
  entry* previous = nullptr;
  entry* next = nullptr;
  result outcome;
};

// Entries and waiter live on the caller's stack. Nobody else touches them without the lock, nor
// after the waiter was told that it is done.
struct connection::waiter {
  std::span<entry> entries;
  time_point deadline;
  std::size_t open = 0;
  parking place{};
};

// Who is to be woken once the lock has been let go.
struct connection::wake_list {
  std::array<parking*, 512> places;
  std::size_t count = 0;

  void add(parking& place) noexcept {
    if (count == places.size()) flush();
    places[count++] = &place;
  }
  void flush() noexcept {
    for (std::size_t i = 0; i < count; ++i) parking::unpark(places[i]);
    count = 0;
  }
};

// One connected socket and what is to be written to it. Shared, because the leader can drop it
// while another caller sends: that one's send then fails and nothing follows from it.
struct connection::stream {
  socket peer;
  reply_parser parser;  // the leader's

  // Under the lock; while `sending` is set, the rest belongs to the one who has set it, and to
  // nobody else until that one has taken the lock again: the replies to what it sent can come
  // before.
  bool sending = false;
  std::string out;
  std::size_t sent = 0;     // of out
  std::uint64_t begin = 0;  // position of out in the stream

  [[nodiscard]] bool may_fill() const noexcept { return !sending && out.empty(); }

  // Lets the lock go while it sends.
  socket::status send(guard& held) {
    sending = true;
    held.unlock();
    auto const status = peer.send(out, sent);
    held.lock();
    sending = false;
    if (sent == out.size()) {
      begin += sent;
      sent = 0;
      out.clear();
    }
    return status;
  }
};

connection_options connection_options::from_url(url const& from) {
  if (from.kind != deployment::standalone || from.addresses.size() != 1) {
    throw invalid_request{from.to_string() + " does not name one Redis server"};
  }
  connection_options options;
  options.server = from.addresses.front();
  options.login = from.login;
  options.database = from.database;
  if (from.tls) options.tls = std::make_shared<tls_context>(from.files);
  return options;
}

connection::connection(connection_options options)
    : options_{std::move(options)}, process_{::getpid()} {
  if (options_.connect_timeout <= 0ms || options_.silence_limit <= 0ms ||
      options_.longest_batch == 0) {
    throw invalid_request{
        "a Redis connection's connect_timeout, silence_limit and longest_batch must be above 0"};
  }
  if (options_.database < 0) throw invalid_request{"a Redis database number must not be negative"};
}

connection::~connection() {
  if (::getpid() == process_ || !stream_) return;
  static_cast<void>(new std::shared_ptr<stream>{stream_});  // never closed in this process
}

result connection::call(command const& what, time_point deadline, priority order) {
  entry one;
  one.wire = what.wire();
  waiter me{.entries = {&one, 1}, .deadline = deadline};
  run(me, order);
  return std::move(one.outcome);
}

std::vector<result> connection::call_all(std::span<command const> what, time_point deadline,
                                         priority order) {
  std::vector<entry> entries(what.size());
  for (std::size_t i = 0; i < what.size(); ++i) entries[i].wire = what[i].wire();
  waiter me{.entries = entries, .deadline = deadline};
  if (!entries.empty()) run(me, order);
  std::vector<result> results;
  results.reserve(entries.size());
  for (auto& one : entries) results.push_back(std::move(one.outcome));
  return results;
}

void connection::run(waiter& me, priority order) {
  // Before any lock: a thread of the parent may have held it at fork().
  if (::getpid() != process_) {
    for (auto& one : me.entries) {
      one.outcome.why = failure::forked;
      one.outcome.error = "this Redis connection belongs to the parent process; make a new one";
    }
    return;
  }
  guard held{mutex_};
  enqueue(me, order);
  if (leader_ == nullptr) return lead(held, me);
  if (may_overlap()) {
    try {
      send_batch(held);
    } catch (std::bad_alloc const&) {  // then the leader sends it
    }
  }
  held.unlock();
  wait(me);
}

void connection::wait(waiter& me) {
  auto const told = me.place.park_until(me.deadline);
  if (told == told_done) return;
  guard held{mutex_};
  if (leader_ == &me) {  // told so, perhaps at the very moment when the time was up
    me.place.reset();
    ++counters_.handovers;
    return lead(held, me);
  }
  if (me.open > 0) abandon(me, failure::deadline, {});
}

void connection::lead(guard& held, waiter& me) {
  wake_list wakes;
  leader_ = &me;
  try {
    while (step(held, me, wakes)) {
    }
  } catch (...) {  // out of memory: the stream may be out of step
    if (!held.owns_lock()) held.lock();
    drop(failure::disconnected, {}, wakes);
    abandon(me, failure::disconnected, {});
    pass_on(held, wakes);
    throw;
  }
  pass_on(held, wakes);
}

void connection::pass_on(guard& held, wake_list& wakes) {
  waiter* next = nullptr;
  for (auto i = flight_head_; i < flight_.size() && next == nullptr; ++i) {
    if (flight_[i].sent != nullptr) next = flight_[i].sent->owner;
  }
  if (next == nullptr && queue_.first != nullptr) next = queue_.first->owner;
  leader_ = next;
  parking* const place = next != nullptr ? &next->place : nullptr;
  bool const sleeps = next != nullptr && next->place.tell(told_to_lead);
  held.unlock();
  if (sleeps) parking::unpark(place);
  wakes.flush();
}

// One round of the leader; false where its work is done.
bool connection::step(guard& held, waiter& me, wake_list& wakes) {
  if (closed_) {
    drop(failure::closed, "the Redis connection was shut down", wakes);
    fail_queued(queued_, failure::closed, "the Redis connection was shut down", wakes);
  }
  if (me.open == 0) return false;
  auto const now = clock::now();
  if (now >= me.deadline) {
    abandon(me, failure::deadline, {});
    return false;
  }
  if (under_way() > 0 && live_ == 0) {
    // Everybody who had sent something has given it up; a fresh stream cannot bring their replies.
    drop(failure::deadline, {}, wakes);
  } else if (under_way() > 0 && now - progress_ >= options_.silence_limit) {
    drop(failure::disconnected,
         options_.server.to_string() + " has sent nothing for " +
             milliseconds(options_.silence_limit),
         wakes);
  }
  if (!stream_) return make_connection(held, me, wakes, now);
  if (under_way() == 0 && stream_->may_fill()) {
    if (!gather(held, now, wakes)) return true;
    take_batch(now);
  }
  exchange(held, me, wakes);
  if (me.open > 0 && wakes.count > 0) {
    held.unlock();
    wakes.flush();
    held.lock();
  }
  return true;
}

bool connection::make_connection(guard& held, waiter& me, wake_list& wakes, time_point now) {
  auto const up_to = queued_;
  auto const until = std::min<time_point>(me.deadline, now + options_.connect_timeout);
  connect_bound const bound{until, closed_};
  held.unlock();
  auto made = std::make_shared<stream>();
  auto why = failure::none;
  bool mine_alone = false;
  std::string error;
  try {
    made->peer = socket::connect(options_.server, names_, bound, options_.tls.get());
    log_in(made->peer, made->parser, options_, bound);
  } catch (unreachable const& e) {
    why = failure::unreachable;
    mine_alone = e.own_deadline() && until == me.deadline;
    error = e.what();
  } catch (invalid_request const& e) {
    why = failure::refused;
    error = e.what();
  }
  held.lock();
  if (closed_) return true;
  if (why == failure::none) {
    stream_ = std::move(made);
    progress_ = clock::now();
    ++counters_.connects;
    return true;
  }
  // Who was queued before the attempt has its answer too; a hundred callers do not try in turn.
  if (mine_alone) {
    abandon(me, why, error);
  } else {
    fail_queued(up_to, why, error, wakes);
  }
  return me.open > 0;
}

// Before a batch while nothing is under way; false where the stream turned out to be dead.
bool connection::gather(guard& held, time_point now, wake_list& wakes) {
  if (queue_size_ < portion()) {  // those who were just woken are about to ask again
    held.unlock();
    ::sched_yield();
    held.lock();
  }
  if (now - progress_ < idle_before_check) return true;
  std::array<char, 64> bytes;
  std::size_t arrived = 0;
  if (stream_->peer.receive_arrived(bytes.data(), bytes.size(), arrived) ==
      socket::status::blocked) {
    return true;
  }
  drop(failure::disconnected, {}, wakes);
  return false;
}

// How many commands make a batch. Where many call, half of them: while the server works on one
// part, the replies to another are handed out and those callers ask again.
std::size_t connection::portion() const noexcept {
  if (callers_ < 2 * least_portion) return callers_;
  return std::min(std::max(callers_ / 2, least_portion), options_.longest_batch);
}

// Whether more should be sent although replies are outstanding. Not behind a handful of commands:
// there is nothing to gain, and what waits in the queue of a server that hangs ends as not_sent.
bool connection::may_overlap() const noexcept {
  return callers_ >= 2 * least_portion && queue_size_ >= portion() && under_way() > 0 &&
         under_way() <= 2 * options_.longest_batch && stream_ && stream_->may_fill() && !closed_;
}

// From the queue to the stream's buffer, which is empty.
void connection::take_batch(time_point now) {
  auto& to = *stream_;
  if (under_way() == 0) {
    flight_.clear();
    flight_head_ = 0;
    progress_ = now;
  } else if (flight_head_ >= options_.longest_batch) {
    flight_.erase(flight_.begin(), flight_.begin() + static_cast<std::ptrdiff_t>(flight_head_));
    flight_head_ = 0;
  }
  // All allocation comes first: a failure leaves queue and stream as they are.
  flight_.reserve(flight_.size() + std::min(queue_size_, options_.longest_batch));
  to.out.reserve(std::max(longest_batch_bytes, queue_.first->wire.size()));
  auto const all = under_way() + queue_size_;
  callers_ = all >= callers_ ? all : callers_ - (callers_ - all + 7) / 8;
  auto const most = callers_ < 2 * least_portion ? options_.longest_batch : portion();
  std::size_t taken = 0;
  while (queue_.first != nullptr && taken < most &&
         (taken == 0 || to.out.size() + queue_.first->wire.size() <= longest_batch_bytes)) {
    auto& one = *queue_.first;
    flight_.push_back({&one, to.begin + to.out.size()});
    to.out += one.wire;
    unlink(one);
    one.where = entry::state::in_flight;
    ++live_;
    ++taken;
  }
  counters_.commands += taken;
  ++counters_.batches;
}

// Batches sent by a caller that does not lead. What was queued while it sent, and finds nothing
// under way any more, is its to send too: the leader has gone to read and will not look.
void connection::send_batch(guard& held) {
  auto const to = stream_;
  auto now = time_point{};
  do {
    take_batch(now);
    if (to->send(held) == socket::status::closed) {
      to->peer.interrupt();  // the leader learns it from its receive()
      return;
    }
    now = clock::now();
  } while (to == stream_ && to->may_fill() && under_way() == 0 && queue_.first != nullptr &&
           !closed_);
}

// The leader's sending; false where the peer has gone.
bool connection::transmit(guard& held) {
  auto& to = *stream_;
  auto status = socket::status::ok;
  while (status == socket::status::ok && !to.sending) {
    if (may_overlap()) take_batch({});
    if (to.out.empty()) break;
    status = to.send(held);
  }
  return status != socket::status::closed;
}

void connection::exchange(guard& held, waiter& me, wake_list& wakes) {
  auto& with = *stream_;  // only the leader replaces it
  auto status = transmit(held) ? socket::status::ok : socket::status::closed;
  bool const more = !with.sending && !with.out.empty();
  auto const until = under_way() > 0
                         ? std::min<time_point>(me.deadline, progress_ + options_.silence_limit)
                         : me.deadline;
  held.unlock();
  std::array<char, receive_size> bytes;
  std::size_t arrived = 0;
  if (status == socket::status::ok) {
    status = with.peer.receive(bytes.data(), bytes.size(), arrived, more, until);
  }
  auto parsed = reply_parser::state::incomplete;
  if (arrived > 0) {
    with.parser.feed(bytes.data(), arrived);
    reply next;
    while ((parsed = with.parser.parse(next)) == reply_parser::state::complete) {
      received_.push_back(std::move(next));
    }
  }
  held.lock();
  auto const server = [this] { return options_.server.to_string(); };
  if (!distribute(wakes)) {
    drop(failure::protocol, server() + " sent a reply that nobody asked for", wakes);
  } else if (parsed == reply_parser::state::broken) {
    drop(failure::protocol, server() + ": " + with.parser.error(), wakes);
  } else if (status == socket::status::closed && !closed_) {
    drop(failure::disconnected, server() + " closed the connection" + with.peer.why_closed(),
         wakes);
  } else if (arrived > 0 && under_way() > 0) {
    progress_ = clock::now();
  }
}

// False where there are more replies than commands.
bool connection::distribute(wake_list& wakes) {
  bool in_step = true;
  for (auto& one : received_) {
    if (under_way() == 0) {
      in_step = false;
      break;
    }
    auto* const answered = flight_[flight_head_++].sent;
    if (answered == nullptr) {
      ++counters_.late;
      continue;
    }
    --live_;
    answered->outcome.outcome = fate::replied;
    answered->outcome.answer = std::move(one);
    finish(*answered, wakes);
  }
  received_.clear();
  return in_step;
}

void connection::finish(entry& one, wake_list& wakes) {
  auto& owner = *one.owner;
  one.where = entry::state::finished;
  if (--owner.open == 0 && &owner != leader_ && owner.place.tell(told_done)) wakes.add(owner.place);
}

void connection::drop(failure why, std::string const& error, wake_list& wakes) {
  if (stream_) ++counters_.drops;
  // Where another caller is sending at this moment, all of it counts as sent.
  auto const sent_up_to = !stream_ || stream_->sending ? std::numeric_limits<std::uint64_t>::max()
                                                       : stream_->begin + stream_->sent;
  stream_.reset();
  received_.clear();
  for (auto i = flight_.size(); i-- > flight_head_;) {
    auto* const one = flight_[i].sent;
    if (one == nullptr) continue;
    bool const untouched = flight_[i].begin >= sent_up_to;
    if (untouched && !std::exchange(one->sent_again, true)) {
      push_front(*one);
      continue;
    }
    one->outcome.outcome = untouched ? fate::not_sent : fate::unknown;
    one->outcome.why = why;
    one->outcome.error = error;
    finish(*one, wakes);
  }
  flight_.clear();
  flight_head_ = 0;
  live_ = 0;
}

void connection::fail_queued(std::uint64_t up_to, failure why, std::string const& error,
                             wake_list& wakes) {
  for (auto* one = queue_.first; one != nullptr;) {
    auto* const next = one->next;
    if (one->serial <= up_to) {
      unlink(*one);
      one->outcome.why = why;
      one->outcome.error = error;
      finish(*one, wakes);
    }
    one = next;
  }
}

// The caller's own decision: its entries leave the queue, and where they are in flight an empty
// place stays, so that the replies that may yet come are counted off.
void connection::abandon(waiter& me, failure why, std::string const& error) {
  for (auto& one : me.entries) {
    if (one.where == entry::state::finished) continue;
    if (one.where == entry::state::queued) {
      unlink(one);
    } else {
      auto const place = std::find_if(flight_.begin() + static_cast<std::ptrdiff_t>(flight_head_),
                                      flight_.end(), [&](auto& f) { return f.sent == &one; });
      place->sent = nullptr;
      --live_;
      one.outcome.outcome = fate::unknown;
    }
    one.where = entry::state::finished;
    one.outcome.why = why;
    one.outcome.error = !error.empty() ? error
                        : one.outcome.outcome == fate::unknown
                            ? "no reply from " + options_.server.to_string() + " in time"
                            : "not sent to " + options_.server.to_string() + " in time";
  }
  me.open = 0;
}

void connection::enqueue(waiter& me, priority order) {
  me.open = me.entries.size();
  for (std::size_t i = 0; i < me.entries.size(); ++i) {
    auto& one = me.entries[order == priority::urgent ? me.entries.size() - 1 - i : i];
    one.owner = &me;
    one.serial = ++queued_;
    order == priority::urgent ? push_front(one) : push_back(one);
  }
}

void connection::push_front(entry& one) noexcept {
  one.where = entry::state::queued;
  one.previous = nullptr;
  one.next = queue_.first;
  (queue_.first != nullptr ? queue_.first->previous : queue_.last) = &one;
  queue_.first = &one;
  ++queue_size_;
}

void connection::push_back(entry& one) noexcept {
  one.where = entry::state::queued;
  one.next = nullptr;
  one.previous = queue_.last;
  (queue_.last != nullptr ? queue_.last->next : queue_.first) = &one;
  queue_.last = &one;
  ++queue_size_;
}

void connection::unlink(entry& one) noexcept {
  (one.previous != nullptr ? one.previous->next : queue_.first) = one.next;
  (one.next != nullptr ? one.next->previous : queue_.last) = one.previous;
  --queue_size_;
}

void connection::shutdown() noexcept {
  if (::getpid() != process_) return;
  guard const held{mutex_};
  closed_ = true;
  if (leader_ == nullptr) {
    stream_.reset();
  } else if (stream_) {
    stream_->peer.interrupt();  // the leader returns from receive() and ends everybody's call
  }
}

connection_counters connection::counters() const {
  if (::getpid() != process_) return {};
  guard const held{mutex_};
  return counters_;
}

}  // namespace fenceguard::redis
