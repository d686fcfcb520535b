#include <doctest/doctest.h>

#include <fenceguard/testing/lease_store.hpp>
#include <fenceguard/testing/token_source.hpp>
#include <memory>
#include <utility>

#include "conformance/run_conformance.hpp"
#include "testing/memory_backend.hpp"

using namespace std::chrono_literals;
namespace fg = fenceguard;
using fg::testing::memory_backend;

namespace {

class memory_store final : public fg::lease_store {
 public:
  memory_store(std::unique_ptr<fg::lease_backend> backend, fg::lease_store_settings const& settings)
      : lease_store{std::move(backend), settings} {}
};

void run_over_memory(memory_backend::hints hints) {
  fg::testing::token_source tokens;
  auto const memory = std::make_shared<fg::testing::lease_memory>(tokens, fg::clock::system());
  fg::tests::run_conformance(
      {.make_store =
           [&](fg::lease_store_settings const& settings) {
             return std::make_unique<memory_store>(std::make_unique<memory_backend>(memory, hints),
                                                   settings);
           },
       .expire = [&](std::string const& resource) { memory->expire(resource); },
       .restart =
           [&] {
             memory->set_available(false);
             memory->forget_all();
             memory->set_available(true);
           },
       .pause = [&] { memory->set_hanging(true); },
       .resume = [&] { memory->set_hanging(false); },
       .short_ttl = 400ms},
      29);
}

}  // namespace

TEST_CASE("conformance: stores that share a memory, with hints") {
  run_over_memory(memory_backend::hints::given);
}

TEST_CASE("conformance: stores that share a memory, without hints") {
  run_over_memory(memory_backend::hints::none);
}

TEST_CASE("conformance: testing::lease_store") {
  fg::testing::token_source tokens;
  fg::testing::lease_store* last = nullptr;
  fg::tests::run_conformance(
      {.make_store =
           [&](fg::lease_store_settings const& settings) {
             auto made = std::make_unique<fg::testing::lease_store>(tokens, settings);
             last = made.get();
             return made;
           },
       .shared = false,
       .expire = [&](std::string const& resource) { last->expire(resource); },
       .pause = [&] { last->set_hanging(true); },
       .resume = [&] { last->set_hanging(false); },
       .short_ttl = 400ms},
      27);
}
