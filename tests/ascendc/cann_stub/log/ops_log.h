// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdio>

inline char logged[400];
#define OPS_LOG_E(context, ...) ((void)(context), snprintf(logged, sizeof(logged), __VA_ARGS__))
