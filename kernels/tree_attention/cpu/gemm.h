// SPDX-License-Identifier: Apache-2.0
// C (+)= A B for the two small products of attention, register blocked. C is float32; A holds
// operands (simd.h), and B the same or elements that are widened as they are loaded.
#pragma once

#include "simd.h"

constexpr int kPanelRows = 6;
// 6 x 4 accumulators and 4 vectors of B fit 32 registers, 6 x 2 fit 16.
#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int kPanelVecs = 4;
#else
constexpr int kPanelVecs = 2;
#endif

// c [MR, NR vectors] (+)= a [MR, depth] b [depth, NR vectors]; a(m, k) lies at m*A_ROW + k*A_COL.
template <int MR, int NR, int A_ROW, int A_COL, bool ADD, class A, class B>
ALWAYS_INLINE void gemm_block(const A* a, const B* b, int64_t b_row, float* c,
                              int64_t c_row, int64_t depth) {
  VecF acc[MR][NR];
#pragma GCC unroll 8
  for (int m = 0; m < MR; m++)
#pragma GCC unroll 8
    for (int n = 0; n < NR; n++) acc[m][n] = ADD ? load(c + m * c_row + n * kLanes) : VecF{};
  for (int64_t k = 0; k < depth; k++) {
    decltype(widen(b)) bv[NR];
#pragma GCC unroll 8
    for (int n = 0; n < NR; n++) bv[n] = widen(b + k * b_row + n * kLanes);
#pragma GCC unroll 8
    for (int m = 0; m < MR; m++) {
      auto av = broadcast(a + m * A_ROW + k * A_COL);
#pragma GCC unroll 8
      for (int n = 0; n < NR; n++) acc[m][n] = multiply_add(acc[m][n], av, bv[n]);
    }
  }
#pragma GCC unroll 8
  for (int m = 0; m < MR; m++)
#pragma GCC unroll 8
    for (int n = 0; n < NR; n++) store(c + m * c_row + n * kLanes, acc[m][n]);
}

template <int MR, int A_ROW, int A_COL, bool ADD, class A, class B>
void gemm_panel(const A* a, const B* b, int64_t b_row, float* c, int64_t c_row,
                int64_t depth, int64_t vecs) {
  int64_t n = 0;
  for (; n + kPanelVecs <= vecs; n += kPanelVecs)
    gemm_block<MR, kPanelVecs, A_ROW, A_COL, ADD>(a, b + n * kLanes, b_row, c + n * kLanes, c_row,
                                                  depth);
  if constexpr (kPanelVecs > 2)
    for (; n + 2 <= vecs; n += 2)
      gemm_block<MR, 2, A_ROW, A_COL, ADD>(a, b + n * kLanes, b_row, c + n * kLanes, c_row, depth);
  for (; n < vecs; n++)
    gemm_block<MR, 1, A_ROW, A_COL, ADD>(a, b + n * kLanes, b_row, c + n * kLanes, c_row, depth);
}

// One panel of the `rows` that are left: at most kPanelRows of them.
template <int A_ROW, int A_COL, bool ADD, class A, class B>
void gemm_rows(int64_t rows, const A* a, const B* b, int64_t b_row, float* c,
               int64_t c_row, int64_t depth, int64_t vecs) {
  switch (rows) {
    case 1: return gemm_panel<1, A_ROW, A_COL, ADD>(a, b, b_row, c, c_row, depth, vecs);
    case 2: return gemm_panel<2, A_ROW, A_COL, ADD>(a, b, b_row, c, c_row, depth, vecs);
    case 3: return gemm_panel<3, A_ROW, A_COL, ADD>(a, b, b_row, c, c_row, depth, vecs);
    case 4: return gemm_panel<4, A_ROW, A_COL, ADD>(a, b, b_row, c, c_row, depth, vecs);
    case 5: return gemm_panel<5, A_ROW, A_COL, ADD>(a, b, b_row, c, c_row, depth, vecs);
    default: return gemm_panel<6, A_ROW, A_COL, ADD>(a, b, b_row, c, c_row, depth, vecs);
  }
}
