#pragma once

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <pqxx/pqxx>
#include <string>
#include <vector>

/// A fixed number of database connections for the worker threads, opened when first needed. Every
/// member may be called from any thread.
class connection_pool {
 public:
  connection_pool(std::string url, std::size_t size);

  /// A connection for one thread for a while; goes back to the pool when destroyed. A connection
  /// that has failed is closed instead, and a new one is opened when it is needed.
  class borrowed {
   public:
    borrowed(connection_pool& pool, std::unique_ptr<pqxx::connection> db)
        : pool_{&pool}, db_{std::move(db)} {}
    borrowed(borrowed const&) = delete;
    borrowed& operator=(borrowed const&) = delete;
    ~borrowed() { pool_->give_back(std::move(db_)); }
    pqxx::connection& operator*() const { return *db_; }

   private:
    connection_pool* pool_;
    std::unique_ptr<pqxx::connection> db_;
  };

  /// Waits at most `patience` for a connection. Throws std::runtime_error where none became free,
  /// and what libpqxx throws where one cannot be opened.
  [[nodiscard]] borrowed borrow(std::chrono::milliseconds patience = std::chrono::seconds{5});

 private:
  void give_back(std::unique_ptr<pqxx::connection> db) noexcept;

  std::string url_;
  std::mutex mutex_;
  std::condition_variable freed_;
  std::vector<std::unique_ptr<pqxx::connection>> idle_;
  std::size_t free_places_;
};
