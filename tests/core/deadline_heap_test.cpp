#include "core/deadline_heap.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <vector>

namespace fg = fenceguard;

TEST_CASE("the earliest is on top, whatever is added, moved and removed") {
  using heap = fg::deadline_heap<&fg::grant::record::watch_index>;
  std::vector<std::unique_ptr<fg::grant::record>> all;
  for (int i = 0; i < 200; ++i) all.push_back(std::make_unique<fg::grant::record>());
  std::vector<std::pair<fg::time_point, fg::grant::record*>> model;
  heap tested;
  std::mt19937 random{20240611};
  for (int step = 0; step < 20'000; ++step) {
    auto* const one = all[random() % all.size()].get();
    auto const known = std::find_if(model.begin(), model.end(),
                                    [&](auto const& entry) { return entry.second == one; });
    if (known != model.end()) model.erase(known);
    if (random() % 3 == 0) {
      tested.remove(*one);
      REQUIRE(one->watch_index == fg::grant::record::not_scheduled);
    } else {
      fg::time_point const when{std::chrono::nanoseconds{random() % 1000}};
      tested.set(*one, when);
      model.emplace_back(when, one);
    }
    REQUIRE(tested.empty() == model.empty());
    if (!model.empty())
      REQUIRE(tested.top().when == std::min_element(model.begin(), model.end())->first);
  }
  CHECK(model.size() > 50);
}
