#pragma once

/// Everything of fenceguard except fenceguard/testing.

#include <fenceguard/core/clock.hpp>
#include <fenceguard/core/errors.hpp>
#include <fenceguard/core/events.hpp>
#include <fenceguard/core/fencing_token.hpp>
#include <fenceguard/core/grant.hpp>
#include <fenceguard/core/lease.hpp>
#include <fenceguard/core/lease_backend.hpp>
#include <fenceguard/core/lease_request.hpp>
#include <fenceguard/core/lease_store.hpp>
#include <fenceguard/core/retry.hpp>
#include <fenceguard/core/token_source.hpp>
#include <fenceguard/postgres/compare_and_set.hpp>
#include <fenceguard/postgres/execute_once.hpp>
#include <fenceguard/postgres/idempotency_key.hpp>
#include <fenceguard/postgres/insert_once.hpp>
#include <fenceguard/postgres/lease_store.hpp>
#include <fenceguard/postgres/migrate.hpp>
#include <fenceguard/postgres/promotion.hpp>
#include <fenceguard/postgres/row_fence.hpp>
#include <fenceguard/postgres/token_source.hpp>
#include <fenceguard/postgres/transaction.hpp>
#include <fenceguard/postgres/transition.hpp>
#include <fenceguard/redis/lease_store.hpp>
#include <fenceguard/redis/redlock_store.hpp>
