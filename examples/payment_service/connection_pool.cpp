#include "connection_pool.hpp"

#include <stdexcept>
#include <utility>

connection_pool::connection_pool(std::string url, std::size_t size)
    : url_{std::move(url)}, free_places_{size} {
  if (size == 0) throw std::invalid_argument{"a pool needs at least one connection"};
  idle_.reserve(size);
}

connection_pool::borrowed connection_pool::borrow(std::chrono::milliseconds patience) {
  std::unique_ptr<pqxx::connection> db;
  {
    std::unique_lock lock{mutex_};
    if (!freed_.wait_for(lock, patience, [&] { return free_places_ > 0; })) {
      throw std::runtime_error{"no database connection became free"};
    }
    --free_places_;
    if (!idle_.empty()) {
      db = std::move(idle_.back());
      idle_.pop_back();
    }
  }
  try {
    if (!db) db = std::make_unique<pqxx::connection>(url_);
  } catch (...) {
    give_back(nullptr);
    throw;
  }
  return borrowed{*this, std::move(db)};
}

void connection_pool::give_back(std::unique_ptr<pqxx::connection> db) noexcept {
  if (db && !db->is_open()) db.reset();
  std::lock_guard lock{mutex_};
  if (db) idle_.push_back(std::move(db));  // capacity was reserved: does not throw
  ++free_places_;
  freed_.notify_one();
}
