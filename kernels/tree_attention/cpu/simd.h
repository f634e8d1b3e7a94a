// SPDX-License-Identifier: Apache-2.0
// One vector of float32 lanes as wide as the machine's registers, and how the tensor dtypes
// enter and leave it. GCC vector extensions, so the same code serves AVX-512, AVX2 and NEON.
#pragma once

#include <cstdint>

#if defined(__AVX512F__) || defined(__F16C__)
#include <immintrin.h>
#endif

#define ALWAYS_INLINE inline __attribute__((always_inline))

#if defined(__AVX512F__)
constexpr int kLanes = 16;
#elif defined(__AVX__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif

typedef float VecF __attribute__((vector_size(kLanes * 4)));
typedef int32_t VecI __attribute__((vector_size(kLanes * 4)));
typedef uint32_t VecU __attribute__((vector_size(kLanes * 4)));
typedef uint16_t VecH __attribute__((vector_size(kLanes * 2)));

struct BFloat16 { uint16_t bits; };
struct Half { uint16_t bits; };
struct BFloat16Pair { BFloat16 even, odd; };

// What a product is computed from: float32, or pairs of bfloat16 where the CPU has an instruction
// that multiplies and adds two of them into a float32 at once.
template <class T> struct OperandOf { using type = float; };
#if defined(__AVX512F__) && defined(__AVX512BF16__)
template <> struct OperandOf<BFloat16> { using type = BFloat16Pair; };
#endif
template <class T> using Operand = typename OperandOf<T>::type;
template <class O> constexpr int kElements = 1;  // per operand
template <> inline constexpr int kElements<BFloat16Pair> = 2;

template <class V, class P>
ALWAYS_INLINE V load_bits(const P* p) {
  V v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}

ALWAYS_INLINE VecF load(const float* p) { return load_bits<VecF>(p); }
ALWAYS_INLINE void store(float* p, VecF v) { __builtin_memcpy(p, &v, sizeof v); }
// Not `x + 0`, which the compiler may not drop: -0 + 0 is +0.
ALWAYS_INLINE VecF splat(float x) { return x - VecF{}; }

// Written so that a NaN in the first argument survives: bad input must show in the output.
ALWAYS_INLINE VecF at_least(VecF x, VecF floor) { return x < floor ? floor : x; }

ALWAYS_INLINE VecI lane_index() {
  VecI v;
  for (int i = 0; i < kLanes; i++) v[i] = i;
  return v;
}

// ---- widening: [kLanes] elements, or one ----

ALWAYS_INLINE VecF widen(const float* p) { return load(p); }
ALWAYS_INLINE VecF widen(const BFloat16* p) {
  return (VecF)(__builtin_convertvector(load_bits<VecH>(p), VecU) << 16);
}

ALWAYS_INLINE float widen_one(const float* p) { return *p; }
ALWAYS_INLINE float widen_one(const BFloat16* p) {
  uint32_t bits = uint32_t(p->bits) << 16;
  return load_bits<float>(&bits);
}
ALWAYS_INLINE float widen_one(const Half* p) { return float(load_bits<_Float16>(p)); }

ALWAYS_INLINE VecF widen(const Half* p) {
#if defined(__AVX512F__)
  return (VecF)_mm512_cvtph_ps(load_bits<__m256i>(p));
#elif defined(__F16C__) && defined(__AVX__)
  return (VecF)_mm256_cvtph_ps(load_bits<__m128i>(p));
#else
  VecF v;
  for (int i = 0; i < kLanes; i++) v[i] = widen_one(p + i);
  return v;
#endif
}

// ---- narrowing, round to nearest even ----

ALWAYS_INLINE void narrow(float* p, VecF v) { store(p, v); }
ALWAYS_INLINE void narrow(BFloat16* p, VecF v) {
#if defined(__AVX512F__) && defined(__AVX512BF16__)
  __m256bh out = _mm512_cvtneps_pbh((__m512)v);
#else
  VecU bits = (VecU)v;
  VecU rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  VecU quiet_nan = VecU{} + 0x7fc0;
  VecH out = __builtin_convertvector(v == v ? rounded : quiet_nan, VecH);
#endif
  __builtin_memcpy(p, &out, sizeof out);
}

ALWAYS_INLINE void narrow_one(float* p, float x) { *p = x; }
ALWAYS_INLINE void narrow_one(BFloat16* p, float x) {
  uint32_t bits = load_bits<uint32_t>(&x);
  p->bits = x == x ? uint16_t((bits + 0x7fff + ((bits >> 16) & 1)) >> 16) : uint16_t(0x7fc0);
}
ALWAYS_INLINE void narrow_one(Half* p, float x) {
  _Float16 h = _Float16(x);
  __builtin_memcpy(p, &h, sizeof h);
}

ALWAYS_INLINE void narrow(Half* p, VecF v) {
#if defined(__AVX512F__)
  __m256i h = _mm512_cvtps_ph((__m512)v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  __builtin_memcpy(p, &h, sizeof h);
#else
  for (int i = 0; i < kLanes; i++) narrow_one(p + i, v[i]);
#endif
}

// ---- operands of a product ----

ALWAYS_INLINE VecF broadcast(const float* p) { return splat(*p); }
ALWAYS_INLINE VecF multiply_add(VecF sum, VecF a, VecF b) { return sum + a * b; }

#if defined(__AVX512F__) && defined(__AVX512BF16__)
ALWAYS_INLINE VecU widen(const BFloat16Pair* p) { return load_bits<VecU>(p); }
ALWAYS_INLINE VecU broadcast(const BFloat16Pair* p) { return VecU{} + load_bits<uint32_t>(p); }
ALWAYS_INLINE VecF multiply_add(VecF sum, VecU a, VecU b) {
  return (VecF)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b);
}
#endif

// kLanes operands from as many elements of `even`, and of `odd` where an operand holds two.
template <class T>
ALWAYS_INLINE void store_operands(float* to, const T* even, const T*) { store(to, widen(even)); }
ALWAYS_INLINE void store_operands(BFloat16Pair* to, const BFloat16* even, const BFloat16* odd) {
  VecU low = __builtin_convertvector(load_bits<VecH>(even), VecU);
  VecU high = __builtin_convertvector(load_bits<VecH>(odd), VecU) << 16;
  VecU both = low | high;
  __builtin_memcpy(to, &both, sizeof both);
}

template <class T>
ALWAYS_INLINE void store_operand(float* to, const T* even, const T*) { *to = widen_one(even); }
ALWAYS_INLINE void store_operand(BFloat16Pair* to, const BFloat16* even, const BFloat16* odd) {
  *to = {*even, *odd};
}

// ---- arithmetic ----

// 2^x for x <= 0. Below 2^-126 the result is exactly 0; a NaN stays a NaN.
// The polynomial interpolates 2^f on [-1/2, 1/2] at the Chebyshev points (relative error 2.6e-9).
ALWAYS_INLINE VecF exp2_nonpositive(VecF x) {
  const VecF lowest = splat(-126.f);
  const VecF round_bias = splat(12582912.f);  // 1.5 * 2^23: adding it rounds to an integer
  VecF clamped = at_least(x, lowest);
  VecF biased = clamped + round_bias;
  VecF f = clamped - (biased - round_bias);
  VecF p = splat(1.5461444725e-04f);
  p = p * f + 1.3400428178e-03f;
  p = p * f + 9.6180566784e-03f;
  p = p * f + 5.5503272267e-02f;
  p = p * f + 2.4022650922e-01f;
  p = p * f + 6.9314720670e-01f;
  p = p * f + 1.0f;
  VecI exponent = (VecI)biased - (VecI)round_bias;
  VecF power = (VecF)((VecI)p + (exponent << 23));
  return x < lowest ? VecF{} : power;
}

ALWAYS_INLINE float max_lane(VecF v) {
  for (int step = kLanes / 2; step; step /= 2) {
    VecF other = __builtin_shuffle(v, lane_index() ^ step);
    v = other > v ? other : v;
  }
  return v[0];
}

ALWAYS_INLINE float sum_lanes(VecF v) {
  for (int step = kLanes / 2; step; step /= 2) v += __builtin_shuffle(v, lane_index() ^ step);
  return v[0];
}
