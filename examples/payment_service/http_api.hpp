#pragma once

#include <httplib.h>

#include "payments.hpp"

/// Adds the routes to a server:
///
///   POST /payments         {"from": 1, "to": 2, "cents": 300} with header Idempotency-Key: 1 … 256
///   bytes
///                          201 paid, 422 refused by the business; a repeat gets the same status
///                          and body and the header Idempotency-Replayed: true 400 bad request, 409
///                          the first try is still under way, 422 the key stands for another
///                          request, 503 busy or out of service (with Retry-After)
///   GET  /accounts/{id}    200 {"id": 1, "balance_cents": 700}, 404
///   GET  /healthz          200, 503
///
/// The statuses for keys are those of the IETF draft "The Idempotency-Key HTTP Header Field".
void add_routes(httplib::Server& server, payments& business);
