// Vectors of numbers, as wide as the processor's registers.

#pragma once

#include <cstdint>
#include <cstring>

#ifdef __AVX512F__
constexpr int kWidth = 16;  // numbers of a vector
#else
constexpr int kWidth = 8;
#endif

typedef float Vector __attribute__((vector_size(4 * kWidth), aligned(4)));

inline Vector& At(float* place) { return *reinterpret_cast<Vector*>(place); }
inline Vector Load(const float* place) {
  return *reinterpret_cast<const Vector*>(place);
}
inline Vector All(float number) { return number - Vector{}; }

// A vector, or one number.
template <typename T>
T LoadAs(const float* place) {
  T numbers;
  std::memcpy(&numbers, place, sizeof(T));
  return numbers;
}

template <typename T>
void Store(T numbers, float* place) {
  std::memcpy(place, &numbers, sizeof(T));
}

// Calls f(zeros, first channel) for all channels: for as many as are in a vector, with a
// vector of zeros, and for each of those that are left over, with the number 0.
template <typename F>
void ForEachVector(int64_t channels, F f) {
  int64_t channel = 0;
  for (; channels - channel >= kWidth; channel += kWidth) f(Vector{}, channel);
  for (; channel < channels; ++channel) f(0.0f, channel);
}
