#include "http_api.hpp"

#include <functional>
#include <iostream>

namespace fg = fenceguard;
using nlohmann::json;

namespace {

struct bad_request : std::runtime_error {
  using std::runtime_error::runtime_error;
};

void reply(httplib::Response& response, int status, json const& body) {
  response.status = status;
  response.set_content(body.dump(), "application/json");
}

void reply_error(httplib::Response& response, int status, std::string const& why) {
  reply(response, status, {{"error", why}});
  if (status == 503) response.set_header("Retry-After", "1");
}

/// One place that turns errors into statuses. What is not a client's business is logged, not told.
void answer(httplib::Response& response, std::function<void()> const& handler) try {
  handler();
} catch (bad_request const& bad) {
  reply_error(response, 400, bad.what());
} catch (fg::invalid_request const& bad) {
  reply_error(response, 400, bad.what());
} catch (fg::key_reused const&) {
  reply_error(response, 422, "the Idempotency-Key was used for another request");
} catch (fg::in_progress const&) {
  reply_error(response, 409, "the first request with this Idempotency-Key is still under way");
} catch (fg::error const& failed) {
  std::cerr << "payment_service: " << failed.what() << '\n';
  bool const passing = failed.advice() != fg::next_step::give_up;
  reply_error(response, passing ? 503 : 500,
              passing ? "try again with the same Idempotency-Key" : "internal error");
} catch (pqxx::failure const& failed) {
  std::cerr << "payment_service: " << failed.what() << '\n';
  reply_error(response, 503, "try again with the same Idempotency-Key");
} catch (std::exception const& failed) {
  std::cerr << "payment_service: " << failed.what() << '\n';
  reply_error(response, 500, "internal error");
}

std::int64_t positive(json const& body, char const* name) {
  auto const found = body.find(name);
  if (found == body.end() || !found->is_number_integer() || found->get<std::int64_t>() <= 0) {
    throw bad_request{std::string{"\""} + name + "\" must be a positive integer"};
  }
  return found->get<std::int64_t>();
}

payments::order parse_order(std::string const& text) {
  json const body = json::parse(text, nullptr, false);
  if (!body.is_object()) throw bad_request{"the body must be a JSON object"};
  payments::order const wanted{positive(body, "from"), positive(body, "to"),
                               positive(body, "cents")};
  if (wanted.from == wanted.to) throw bad_request{"\"from\" and \"to\" must differ"};
  return wanted;
}

void post_payment(payments& business, httplib::Request const& request,
                  httplib::Response& response) {
  std::string const key = request.get_header_value("Idempotency-Key");
  if (key.empty()) throw bad_request{"the header Idempotency-Key is missing"};
  auto const result = business.pay(key, parse_order(request.body));
  if (!result) {
    reply_error(response, 503, "the accounts are busy");
    return;
  }
  reply(response, result->body.at("status") == "paid" ? 201 : 422, result->body);
  if (result->replayed) response.set_header("Idempotency-Replayed", "true");
}

void get_account(payments& business, httplib::Request const& request, httplib::Response& response) {
  std::string const digits = request.matches[1];
  if (digits.size() > 18) throw bad_request{"the account number is too long"};
  std::int64_t const id = std::stoll(digits);
  if (auto const balance = business.balance(id)) {
    reply(response, 200, {{"id", id}, {"balance_cents", *balance}});
  } else {
    reply_error(response, 404, "no such account");
  }
}

}  // namespace

void add_routes(httplib::Server& server, payments& business) {
  server.Post("/payments", [&](httplib::Request const& request, httplib::Response& response) {
    answer(response, [&] { post_payment(business, request, response); });
  });
  server.Get(R"(/accounts/(\d+))",
             [&](httplib::Request const& request, httplib::Response& response) {
               answer(response, [&] { get_account(business, request, response); });
             });
  server.Get("/healthz", [&](httplib::Request const&, httplib::Response& response) {
    answer(response, [&] {
      business.check_health();
      reply(response, 200, {{"status", "ok"}});
    });
  });
}
