#include "core/reservation.hpp"

#include <exception>
#include <fenceguard/core/errors.hpp>
#include <utility>

namespace fenceguard {

void reservation_failure::raise() const {
  switch (what) {
    case kind::schema:
      throw schema_mismatch{message};
    case kind::invalid:
      throw invalid_request{message};
    case kind::unavailable:
      break;
  }
  throw token_source_unavailable{message};
}

reservation reserve(token_source& source, std::int64_t count, observer* told) noexcept {
  reservation_failure failed;
  try {
    auto const first = source.reserve(count);
    if (first.value() <= fencing_token::max_value - count) return {.first = first};
    failed.message = "the token source has come to the end of the range of tokens";
  } catch (schema_mismatch const& e) {
    failed = {reservation_failure::kind::schema, e.what()};
  } catch (invalid_request const& e) {
    failed = {reservation_failure::kind::invalid, e.what()};
  } catch (std::exception const& e) {
    failed.message = e.what();
  } catch (...) {
    failed.message = "the token source threw something that is no std::exception";
  }
  if (told != nullptr) told->on_event(events::store_error{"reserve tokens", failed.message});
  return {.failure = std::move(failed)};
}

}  // namespace fenceguard
