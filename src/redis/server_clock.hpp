#pragma once

#include "core/server_clock.hpp"
