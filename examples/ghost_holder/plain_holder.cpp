#include <hiredis/hiredis.h>

#include <cstdint>
#include <memory>
#include <random>
#include <stdexcept>
#include <thread>

#include "holder.hpp"
#include "ledger.hpp"

namespace {

using reply = std::unique_ptr<redisReply, decltype(&freeReplyObject)>;

class plain_lock {
 public:
  plain_lock(std::string const& url, std::string key) : key_{std::move(key)} {
    std::string const address = url.substr(std::string{"redis://"}.size());
    auto const colon = address.find(':');
    redis_.reset(
        redisConnect(address.substr(0, colon).c_str(), std::stoi(address.substr(colon + 1))));
    if (!redis_ || redis_->err) throw std::runtime_error{"cannot connect to Redis at " + url};
    std::random_device random;
    value_ = std::to_string((std::uint64_t{random()} << 32) | random());
  }

  bool try_lock() {
    reply const answer = command("SET %s %s NX PX %lld", key_.c_str(), value_.c_str(),
                                 static_cast<long long>(lease_ttl.count()));
    return answer->type == REDIS_REPLY_STATUS;
  }

  bool unlock() {
    char const* const compare_and_delete =
        "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end "
        "return 0";
    return command("EVAL %s 1 %s %s", compare_and_delete, key_.c_str(), value_.c_str())->integer ==
           1;
  }

 private:
  template <class... Args>
  reply command(char const* format, Args... args) {
    reply answer{static_cast<redisReply*>(redisCommand(redis_.get(), format, args...)),
                 &freeReplyObject};
    if (!answer || answer->type == REDIS_REPLY_ERROR) throw std::runtime_error{"Redis failed"};
    return answer;
  }

  std::unique_ptr<redisContext, decltype(&redisFree)> redis_{nullptr, &redisFree};
  std::string key_;
  std::string value_;
};

}  // namespace

int run_plain_holder(holder const& me) {
  pqxx::connection db{me.database_url};
  plain_lock lock{me.redis_url, "plain:account/42"};
  while (!lock.try_lock()) std::this_thread::sleep_for(std::chrono::milliseconds{20});
  int const balance = ledger::read_balance(db, "plain");
  say(me, "has the lock, reads the balance: " + std::to_string(balance));

  stop_here(me);

  pqxx::work tx{db};
  tx.exec_params(ledger::set_balance("plain"), balance - me.amount);
  tx.exec_params(ledger::insert_payment("plain"), me.name, me.amount);
  tx.commit();
  say(me, "pays " + std::to_string(me.amount) + ", writes the balance " +
              std::to_string(balance - me.amount));
  if (!lock.unlock()) say(me, "finds at unlock that the lock was not its own any more: too late");
  return paid;
}
