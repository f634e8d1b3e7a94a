// SPDX-License-Identifier: Apache-2.0
// Sixteen float32 at a time: widening, comparing, exp. GCC vector extensions: where the registers
// are narrower, the compiler splits them.
#pragma once

#include <cstdint>

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

#define ALWAYS_INLINE inline __attribute__((always_inline))

constexpr int kLanes = 16;
typedef float VecF __attribute__((vector_size(kLanes * 4)));
typedef int32_t VecI __attribute__((vector_size(kLanes * 4)));
typedef uint32_t VecU __attribute__((vector_size(kLanes * 4)));
typedef uint16_t VecH __attribute__((vector_size(kLanes * 2)));

struct BFloat16 { uint16_t bits; };
struct Half { uint16_t bits; };

template <class V, class P>
ALWAYS_INLINE V load_bits(const P* p) {
  V v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}
ALWAYS_INLINE VecF load(const float* p) { return load_bits<VecF>(p); }
ALWAYS_INLINE void store(float* p, VecF v) { __builtin_memcpy(p, &v, sizeof v); }

ALWAYS_INLINE float widen_one(const float* p) { return *p; }
ALWAYS_INLINE float widen_one(const BFloat16* p) {
  uint32_t bits = uint32_t(p->bits) << 16;
  return load_bits<float>(&bits);
}
ALWAYS_INLINE float widen_one(const Half* p) { return float(load_bits<_Float16>(p)); }

ALWAYS_INLINE VecF widen(const float* p) { return load(p); }
ALWAYS_INLINE VecF widen(const BFloat16* p) {
  return (VecF)(__builtin_convertvector(load_bits<VecH>(p), VecU) << 16);
}
ALWAYS_INLINE VecF widen(const Half* p) {
#if defined(__AVX512F__)
  return (VecF)_mm512_cvtph_ps(load_bits<__m256i>(p));
#else
  VecF v;
  for (int i = 0; i < kLanes; i++) v[i] = widen_one(p + i);
  return v;
#endif
}

// Whether a comparison holds in any lane.
ALWAYS_INLINE bool any(VecI mask) {
#if defined(__AVX512F__)
  return _mm512_test_epi32_mask((__m512i)mask, (__m512i)mask) != 0;
#else
  int32_t all = 0;
  for (int i = 0; i < kLanes; i++) all |= mask[i];
  return all != 0;
#endif
}

// exp(x) for x <= 0, to 2e-7 relative down to -87; below that 1e-38 instead of less, which no sum
// that holds a 1 can tell. x = n ln 2 + r with |r| <= ln 2 / 2; Taylor's series of exp(r) to r^7.
ALWAYS_INLINE VecF exponential(VecF x) {
  const float round_at = 12582912.0f;  // 1.5 * 2^23: the sum has no fraction bits left
  x = x < -87.0f ? VecF{} - 87.0f : x;
  VecF shifted = x * 1.44269504089f + round_at;
  VecF n = shifted - round_at;
  // ln 2 in two parts, the first so short that n times it is exact.
  VecF r = x - n * 0.693359375f;
  r = r + n * 2.12194440e-4f;
  VecF p = VecF{} + 1.0f / 5040;
  p = p * r + 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  VecU power = (((VecU)shifted - (VecU)(VecF{} + round_at)) + 127) << 23;
  return p * (VecF)power;
}
