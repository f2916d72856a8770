// Convolution, bias, 2x2 max-pooling and ReLU in one pass, and its gradients, for one
// core of a CPU. moon_jax/models/convolution/fused_cpu.py describes the calls.
//
// Images are [C, H, W, B] float32. 16 examples are copied together, with zeros around
// them. Forward, one or two vectors hold one number of the 16 examples: of up to 8
// features two vectors of sums each stay in registers while a loop passes over the
// window, or over its values at one of Winograd's points. Backward, a pooled square has
// one output that gets a gradient, or none: three quarters of a dense convolution's
// products would be with zeros. So there each example is an image [H, W, C], in which a
// row of a window is one piece, and a list tells where the gradients are.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "vectors.h"
#include "xla_call.h"

namespace {

constexpr int kGroup = 16;             // examples
constexpr int kParts = kGroup / kWidth;
constexpr int kAtOnce = 2 / kParts;    // outputs, forward
constexpr int kPiece = kWidth / 8 + 1; // vectors of a row of a patch, backward
constexpr int kRows = 5;               // of a window at a time, backward
constexpr int kPlaces = 4;             // outputs of a pooled square
constexpr int8_t kNone = kPlaces;      // ReLU cut the largest off

typedef int32_t Integers __attribute__((vector_size(4 * kWidth), aligned(4)));
typedef int8_t Bytes __attribute__((vector_size(kWidth), aligned(1)));

// Fewer than 2 kSize numbers, in pieces whose sizes the compiler knows.
template <int kSize, typename T>
__attribute__((noinline)) void Pieces(const T* from, int64_t count, T* to) {
  const int64_t done = count & kSize;
  if (done) std::memcpy(to, from, kSize * sizeof(T));
  if constexpr (kSize > 1) Pieces<kSize / 2>(from + done, count, to + done);
}

// Of a group of examples; known at compile time how many, in all but the last one.
template <typename T>
void Copy(const T* from, int64_t count, T* to) {
  if (count == kGroup)
    std::memcpy(to, from, kGroup * sizeof(T));
  else
    Pieces<kGroup / 2>(from, count, to);
}

int64_t RoundUp(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

struct Shape {
  int64_t channels, height, width, batch;  // of the images
  int64_t above, left;                     // zeros around them
  int64_t kh, kw, features;                // of the kernel
  int64_t down, across;                    // pooled squares

  // Of an image with its zeros, as far as windows reach, [rows, columns, channels].
  int64_t columns() const { return 2 * across + kw - 1; }
  int64_t line() const { return columns() * channels; }
  int64_t size() const { return (2 * down + kh - 1) * line(); }
  // Of a row of a window.
  int64_t run() const { return kw * channels; }
  int64_t squares() const { return down * across; }
  // From one image to the next: a vector may reach behind the end of an image; and
  // images must not be a multiple of 4096 bytes apart, which one set of a cache holds.
  int64_t stride() const { return size() + kGroup; }
  // Rows of the kernel, filled up with zeros to whole vectors.
  int64_t filled() const { return RoundUp(run(), kGroup); }
  // With the zeros of one pixel before or behind the row.
  int64_t padded() const { return RoundUp(run() + channels, kGroup); }

  // Calls f for all rows of the images in pieces of up to kGroup numbers, with where
  // the numbers are in [C, H, W, B], how many, and where the first is in an image.
  template <typename F>
  void ForEachPiece(F f) const {
    for (int64_t i = 0; i < height; ++i)
      for (int64_t start = 0; start < width * channels; start += kGroup) {
        int64_t from[kGroup], count = 0, j = start / channels, c = start % channels;
        for (; count < kGroup && j < width; ++count) {
          from[count] = ((c * height + i) * width + j) * batch;
          if (++c == channels) ++j, c = 0;
        }
        f(from, count, (i + above) * line() + left * channels + start);
      }
  }
};

// --- forward -------------------------------------------------------------------------

// Sums of kCount features over `taps` vectors that begin at a place, and over those
// `second` numbers behind it. From a tap's weights to the next are `stride` numbers.
// Not inline: among what else its callers keep, the compiler has no registers for it.
template <int kCount>
__attribute__((noinline)) void Products(
    const float* window, int64_t second, const int32_t* offsets, int64_t taps,
    const float* weights, int64_t stride, Vector (*products)[2]) {
  Vector sums[kCount][2] = {};
  for (int64_t tap = 0; tap < taps; ++tap, weights += stride) {
    const Vector a = Load(window + offsets[tap]);
    const Vector b = Load(window + offsets[tap] + second);
    for (int f = 0; f < kCount; ++f) {
      sums[f][0] += All(weights[f]) * a;
      sums[f][1] += All(weights[f]) * b;
    }
  }
  for (int f = 0; f < kCount; ++f)
    for (int i = 0; i < 2; ++i) products[f][i] = sums[f][i];
}

// Calls f(number of features, first feature) for all features: for as many at a time as
// have their sums in registers.
template <typename F>
void ForEachFeatures(int64_t features, F f) {
  int64_t first = 0;
  if (kParts == 1 && features % 8 == 0)
    for (; first < features; first += 8) f(std::integral_constant<int, 8>(), first);
  if (features % 6 == 0 || features % 6 >= 4)  // else two or three alone are slow
    for (; features - first >= 6; first += 6)
      f(std::integral_constant<int, 6>(), first);
  for (; features - first >= 4; first += 4) f(std::integral_constant<int, 4>(), first);
  for (; first < features; ++first) f(std::integral_constant<int, 1>(), first);
}

// A group of examples, and where its results go.
struct Group {
  const float* images;  // [rows, columns, channels, kGroup]
  int64_t example, count;
  const float* bias;
  float* y;
  int8_t* winners;
};

// Of a pooled square the largest of its outputs, and after ReLU the sum with the bias.
inline __attribute__((always_inline)) void Pool(
    const Shape& s, const Group& group, const Vector (&outputs)[kPlaces][kParts],
    int64_t feature, int64_t row, int64_t column) {
  float values[kGroup];
  int8_t places[kGroup];
  for (int part = 0; part < kParts; ++part) {
    Vector largest = outputs[0][part];
    Integers winner = {};
    for (int place = 1; place < kPlaces; ++place) {
      const Vector output = outputs[place][part];
      // NaN wins, and stays.
      const Integers wins = (output > largest) | (output != output);
      largest = wins ? output : largest;
      winner = wins ? Integers{} + place : winner;
    }
    const Vector sum = largest + All(group.bias[feature]);
    const Integers off = sum <= 0;
    At(values + part * kWidth) = off ? Vector{} : sum;
    *reinterpret_cast<Bytes*>(places + part * kWidth) =
        __builtin_convertvector(off ? Integers{} + kNone : winner, Bytes);
  }
  const int64_t at =
      ((feature * s.down + row) * s.across + column) * s.batch + group.example;
  Copy(values, group.count, group.y + at);
  Copy(places, group.count, group.winners + at);
}

// The squares of kCount features from `first` on, by sums over whole windows.
template <int kCount>
void Direct(const Shape& s, const Group& group, const int32_t* offsets,
            const float* kernel, int64_t first) {
  const int64_t second = kAtOnce == 1 ? kWidth : s.channels * kGroup;
  for (int64_t row = 0; row < s.down; ++row)
    for (int64_t column = 0; column < s.across; ++column) {
      Vector sums[kPlaces / kAtOnce][kCount][2];  // of parts, or of two outputs
      for (int place = 0; place < kPlaces; place += kAtOnce) {
        const float* window =
            group.images + ((2 * row + place / 2) * s.line() +
                            (2 * column + place % 2) * s.channels) * kGroup;
        Products<kCount>(window, second, offsets, s.kh * s.run(), kernel + first,
                         s.features, sums[place / kAtOnce]);
      }
      for (int f = 0; f < kCount; ++f) {
        Vector outputs[kPlaces][kParts];
        for (int i = 0; i < kPlaces * kParts; ++i)
          outputs[i / kParts][i % kParts] = sums[i / 2][f][i % 2];
        Pool(s, group, outputs, first + f, row, column);
      }
    }
}

// Winograd's algorithm along the rows, for kernels of kFive columns: kTile neighbouring
// outputs take kTile + 4 products in place of 5 kTile. It is the transpose of multiplying
// polynomials of degrees 4 and kTile - 1 at kTile + 3 points and at infinity (Lavin and
// Gray, arXiv:1509.09308). The rows of the kernel and the channels are summed up at the
// points. A divisor is the product of a point's differences from the other points (in the
// tile of four, OfPixels has the sign of that at 0).
constexpr int kFive = 5;

template <int kTile>
struct Winograd;

// At 0, 1, -1, 2, -2.
template <>
struct Winograd<2> {
  static constexpr int kPoints = 6;
  static constexpr double kAt[] = {0, 1, -1, 2, -2};
  static constexpr double kDivisors[] = {4, -6, -6, 24, 24};

  static void OfPixels(const Vector (&d)[kPoints], Vector (&v)[kPoints]) {
    const Vector even = d[4] - 4 * d[2], odd = d[3] - 4 * d[1];
    const Vector other_even = d[4] - d[2], other_odd = 2 * (d[3] - d[1]);
    v[0] = other_even - 4 * (d[2] - d[0]);
    v[1] = even + odd;
    v[2] = even - odd;
    v[3] = other_even + other_odd;
    v[4] = other_even - other_odd;
    v[5] = d[5] - 5 * d[3] + 4 * d[1];
  }

  static void Outputs(const Vector (&v)[kPoints], Vector (&y)[2]) {
    y[0] = v[0] + (v[1] + v[2]) + (v[3] + v[4]);
    y[1] = (v[1] - v[2]) + 2 * (v[3] - v[4]) + v[5];
  }
};

// At 0, 1, -1, 2, -2, 1/2, -1/2.
template <>
struct Winograd<4> {
  static constexpr int kPoints = 8;
  static constexpr double kAt[] = {0, 1, -1, 2, -2, 0.5, -0.5};
  static constexpr double kDivisors[] = {1, -4.5, -4.5, 90, 90, 1.40625, 1.40625};

  static void OfPixels(const Vector (&d)[kPoints], Vector (&v)[kPoints]) {
    v[0] = d[0] - d[6] + 5.25f * (d[4] - d[2]);
    v[7] = d[7] - d[1] + 5.25f * (d[3] - d[5]);
    Vector even = d[2] + d[6] - 4.25f * d[4], odd = d[1] + d[5] - 4.25f * d[3];
    v[1] = even + odd;
    v[2] = even - odd;
    even = d[6] + 0.25f * d[2] - 1.25f * d[4];
    odd = 0.5f * d[1] - 2.5f * d[3] + 2 * d[5];
    v[3] = even + odd;
    v[4] = even - odd;
    even = d[6] + 4 * d[2] - 5 * d[4];
    odd = 2 * d[1] - 2.5f * d[3] + 0.5f * d[5];
    v[5] = even + odd;
    v[6] = even - odd;
  }

  static void Outputs(const Vector (&v)[kPoints], Vector (&y)[4]) {
    const Vector sum = v[1] + v[2], difference = v[1] - v[2];
    const Vector sum_of_2 = v[3] + v[4], difference_of_2 = v[3] - v[4];
    const Vector sum_of_half = v[5] + v[6], difference_of_half = v[5] - v[6];
    y[0] = v[0] + sum + sum_of_2 + sum_of_half;
    y[1] = difference + 2 * difference_of_2 + 0.5f * difference_of_half;
    y[2] = sum + 4 * sum_of_2 + 0.25f * sum_of_half;
    y[3] = difference + 8 * difference_of_2 + 0.125f * difference_of_half + v[7];
  }
};

// The kernel at the points; of the features that are summed at once, [points, kh,
// channels, features].
template <int kTile>
void AtPoints(const Shape& s, const float* kernel, float* weights) {
  using W = Winograd<kTile>;
  const int64_t taps = s.kh * s.channels;
  ForEachFeatures(s.features, [&](auto at_once, int64_t first) {
    for (int64_t tap = 0; tap < taps; ++tap)
      for (int f = 0; f < at_once; ++f) {
        const int64_t row = tap / s.channels, channel = tap % s.channels;
        const auto number = [&](int column) -> double {
          const int64_t pixel = (row * kFive + column) * s.channels + channel;
          return kernel[pixel * s.features + first + f];
        };
        float* to = weights + tap * at_once + f;
        for (int p = 0; p + 1 < W::kPoints; ++p, to += taps * at_once) {
          double sum = 0;
          for (int column = kFive - 1; column >= 0; --column)
            sum = sum * W::kAt[p] + number(column);
          *to = sum / W::kDivisors[p];
        }
        *to = number(kFive - 1);
      }
    weights += W::kPoints * taps * at_once;
  });
}

// The squares of kTile columns of outputs. points: memory for [points, rows, channels,
// kGroup]; offsets: those of taps one behind the other.
template <int kTile>
void Strip(const Shape& s, const Group& group, const int32_t* offsets,
           const float* weights, int64_t column, float* points) {
  using W = Winograd<kTile>;
  const int64_t rows = 2 * s.down + s.kh - 1, line = s.channels * kGroup;
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t i = 0; i < line; i += kWidth) {
      const float* from = group.images + (row * s.columns() + 2 * column) * line + i;
      Vector pixels[W::kPoints], values[W::kPoints];
#pragma GCC unroll 8
      for (int p = 0; p < W::kPoints; ++p) pixels[p] = Load(from + p * line);
      W::OfPixels(pixels, values);
#pragma GCC unroll 8
      for (int p = 0; p < W::kPoints; ++p)
        At(points + (p * rows + row) * line + i) = values[p];
    }
  const int64_t taps = s.kh * s.channels;
  ForEachFeatures(s.features, [&](auto at_once, int64_t first) {
    for (int64_t row = 0; row < s.down; ++row) {
      Vector sums[2 / kAtOnce][W::kPoints][at_once][2];  // of parts, or of two rows
      for (int i = 0; i < 2; i += kAtOnce)
        for (int p = 0; p < W::kPoints; ++p)
          Products<at_once>(points + (p * rows + 2 * row + i) * line,
                            kAtOnce == 1 ? kWidth : line, offsets, taps,
                            weights + p * taps * at_once, at_once,
                            sums[i / kAtOnce][p]);
      for (int f = 0; f < at_once; ++f) {
        Vector outputs[kTile / 2][kPlaces][kParts];
#pragma GCC unroll 4
        for (int i = 0; i < 2 * kParts; ++i) {
          Vector values[W::kPoints], of_row[kTile];
#pragma GCC unroll 8
          for (int p = 0; p < W::kPoints; ++p) values[p] = sums[i / 2][p][f][i % 2];
          W::Outputs(values, of_row);
#pragma GCC unroll 4
          for (int j = 0; j < kTile; ++j)
            outputs[j / 2][i / kParts * 2 + j % 2][i % kParts] = of_row[j];
        }
#pragma GCC unroll 2
        for (int square = 0; square < kTile / 2; ++square)
          Pool(s, group, outputs[square], first + f, row, column + square);
      }
    }
    weights += W::kPoints * taps * at_once;
  });
}

// scratch: float32 [size, kGroup] images, [8, rows, channels, kGroup] and [14, kh,
// channels, features] at points, int32 [kh * run] offsets.
void Forward(const Shape& s, const float* x, const float* kernel, const float* bias,
             float* y, int8_t* winners, char* scratch) {
  const bool direct = s.kw != kFive;
  const int64_t rows = 2 * s.down + s.kh - 1, taps = s.kh * s.channels;
  float* images = reinterpret_cast<float*>(scratch);
  float* points = images + s.size() * kGroup;
  float* of_two = points + Winograd<4>::kPoints * rows * s.channels * kGroup;
  float* of_four = of_two + Winograd<2>::kPoints * taps * s.features;
  int32_t* offsets = reinterpret_cast<int32_t*>(
      of_four + Winograd<4>::kPoints * taps * s.features);
  for (int64_t tap = 0; tap < s.kh * s.run(); ++tap)
    offsets[tap] =
        (direct ? tap / s.run() * s.line() + tap % s.run() : tap) * kGroup;
  if (!direct && s.across > 1) AtPoints<4>(s, kernel, of_four);
  if (!direct && s.across % 2 == 1) AtPoints<2>(s, kernel, of_two);
  std::memset(images, 0, s.size() * kGroup * sizeof(float));
  for (int64_t example = 0; example < s.batch; example += kGroup) {
    const int64_t rest = s.batch - example, count = rest < kGroup ? rest : kGroup;
    s.ForEachPiece([&](const int64_t* from, int64_t numbers, int64_t to) {
      for (int64_t i = 0; i < numbers; ++i)
        Copy(x + from[i] + example, count, images + (to + i) * kGroup);
    });
    const Group group = {images, example, count, bias, y, winners};
    if (direct) {
      ForEachFeatures(s.features, [&](auto at_once, int64_t first) {
        Direct<at_once>(s, group, offsets, kernel, first);
      });
      continue;
    }
    int64_t column = 0;
    for (; s.across - column >= 2; column += 2)
      Strip<4>(s, group, offsets, of_four, column, points);
    if (column < s.across) Strip<2>(s, group, offsets, of_two, column, points);
  }
}

// --- backward ------------------------------------------------------------------------

// Moves each bit of an index of [kGroup, kGroup] one place up, the highest one to the
// lowest place.
void Shuffle(const float* from, float* to) {
  constexpr int kHalf = kGroup * kGroup / 2;
  for (int i = 0; i < kHalf; ++i) {
    to[2 * i] = from[i];
    to[2 * i + 1] = from[i + kHalf];
  }
}

// Of [kGroup, kGroup]: the two halves of an index's bits change places.
void Transpose(float* tile) {
  float other[kGroup * kGroup];
  for (int row = 1; row < kGroup; row *= 4) {
    Shuffle(tile, other);
    Shuffle(other, tile);
  }
}

// A gradient, and the place of its factor: of its output's window in an image, or of its
// feature's kernel.
struct Entry {
  int32_t start;
  float gradient;
};

// For `count` examples the gradients of a feature, [kGroup, squares], and how many.
void List(const Shape& s, const float* gradient, const int8_t* winners, int64_t feature,
          int64_t example, int64_t count, Entry* entries, int64_t* lengths) {
  // The compiler must not expect that writing to a list changes these.
  const int64_t down = s.down, across = s.across, batch = s.batch;
  const int32_t line = s.line(), channels = s.channels;
  const int32_t starts[kPlaces + 1] = {0, channels, line, line + channels};
  Entry* ends[kGroup];
  for (int i = 0; i < kGroup; ++i) ends[i] = entries + i * down * across;
  for (int64_t row = 0; row < down; ++row)
    for (int64_t column = 0; column < across; ++column) {
      const int64_t at = ((feature * down + row) * across + column) * batch + example;
      const int32_t square = 2 * (row * line + column * channels);
      for (int64_t i = 0; i < count; ++i) {
        const int8_t winner = winners[at + i];
        *ends[i] = {square + starts[winner], gradient[at + i]};
        ends[i] += winner != kNone;
      }
    }
  for (int i = 0; i < kGroup; ++i) lengths[i] = ends[i] - (entries + i * down * across);
}

// Adds to kCount rows of a kernel's gradient, kGroup numbers of each, what one example
// contributes; and to the bias's.
template <int kCount>
void Sums(const Shape& s, const Entry* entries, int64_t length, const float* image,
          float* kernel, float* bias) {
  Vector sums[kCount][kParts] = {}, total = {};
  for (int64_t i = 0; i < length; ++i) {
    const Vector gradient = All(entries[i].gradient);
    const float* window = image + entries[i].start;
    total += gradient;
    for (int row = 0; row < kCount; ++row)
      for (int part = 0; part < kParts; ++part)
        sums[row][part] += gradient * Load(window + row * s.line() + part * kWidth);
  }
  for (int row = 0; row < kCount; ++row)
    for (int part = 0; part < kParts; ++part)
      At(kernel + row * s.filled() + part * kWidth) += sums[row][part];
  *bias += total[0];
}

// scratch: float32 [kGroup, stride] images, [features, kh, filled] sums, Entry [kGroup,
// squares].
void OfKernelAndBias(const Shape& s, const float* x, const float* gradient,
                     const int8_t* winners, float* kernel, float* bias, char* scratch) {
  float* images = reinterpret_cast<float*>(scratch);
  float* sums = images + kGroup * s.stride();
  Entry* entries = reinterpret_cast<Entry*>(sums + s.features * s.kh * s.filled());
  // Where vectors reach behind a row, they read what is not used; but not NaN's bits.
  std::memset(scratch, 0, reinterpret_cast<char*>(entries) - scratch);
  std::memset(bias, 0, s.features * sizeof(float));
  float tile[kGroup * kGroup] = {};
  for (int64_t example = 0; example < s.batch; example += kGroup) {
    const int64_t rest = s.batch - example, count = rest < kGroup ? rest : kGroup;
    s.ForEachPiece([&](const int64_t* from, int64_t numbers, int64_t to) {
      for (int64_t i = 0; i < numbers; ++i)
        Copy(x + from[i] + example, count, tile + i * kGroup);
      Transpose(tile);
      for (int64_t i = 0; i < count; ++i)
        Copy(tile + i * kGroup, numbers, images + i * s.stride() + to);
    });
    for (int64_t feature = 0; feature < s.features; ++feature) {
      int64_t lengths[kGroup];
      List(s, gradient, winners, feature, example, count, entries, lengths);
      for (int64_t i = 0; i < count; ++i)
        for (int64_t start = 0; start < s.run(); start += kGroup) {
          float unused = 0, *total = start == 0 ? bias + feature : &unused;
          const auto add = [&](auto function, int64_t row) {
            function(s, entries + i * s.squares(), lengths[i],
                     images + i * s.stride() + row * s.line() + start,
                     sums + (feature * s.kh + row) * s.filled() + start,
                     row == 0 ? total : &unused);
          };
          int64_t row = 0;
          for (; s.kh - row >= kRows; row += kRows) add(Sums<kRows>, row);
          for (; s.kh - row >= 3; row += 3) add(Sums<3>, row);
          for (; row < s.kh; ++row) add(Sums<1>, row);
        }
    }
  }
  for (int64_t tap = 0; tap < s.kh * s.run(); ++tap)
    for (int64_t feature = 0; feature < s.features; ++feature)
      kernel[tap * s.features + feature] =
          sums[(feature * s.kh + tap / s.run()) * s.filled() + tap % s.run()];
}

// For `count` examples the gradients of a square's features, [kGroup, 2, features]: of
// the upper two outputs, and of the lower two; and how many. There is a kernel for the
// left outputs, and one for the right ones.
void ListSquare(const Shape& s, const float* gradient, const int8_t* winners,
                int64_t square, int64_t example, int64_t count, Entry* entries,
                int64_t (*lengths)[2]) {
  const int64_t squares = s.squares(), features = s.features, batch = s.batch;
  const int32_t kernel = s.kh * s.padded(), right = features * kernel;
  Entry* ends[kGroup][2];
  for (int i = 0; i < kGroup; ++i)
    for (int half = 0; half < 2; ++half)
      ends[i][half] = entries + (2 * i + half) * features;
  for (int64_t feature = 0; feature < features; ++feature) {
    const int64_t at = (feature * squares + square) * batch + example;
    const int32_t left = feature * kernel;
    for (int64_t i = 0; i < count; ++i) {
      const int8_t winner = winners[at + i];
      Entry*& end = ends[i][winner / 2 % 2];
      *end = {left + winner % 2 * right, gradient[at + i]};
      end += winner != kNone;
    }
  }
  for (int i = 0; i < kGroup; ++i)
    for (int half = 0; half < 2; ++half)
      lengths[i][half] = ends[i][half] - (entries + (2 * i + half) * features);
}

// Adds to a patch, which the four windows of a square cover, what its outputs contribute
// to kRowCount + 1 rows, kCount vectors of each: the upper ones from the first row on,
// the lower ones from the second. One sum for all features spares the image: a number
// that was just written is slow to be read again.
template <int kRowCount, int kCount>
void Spread(const Shape& s, const Entry* entries, const int64_t* lengths,
            const float* weights, float* image) {
  Vector sums[kRowCount + 1][kCount] = {};
  const int64_t padded = s.padded(), line = s.line();
  const auto sum = [&](const Entry* list, int64_t length, Vector (*first)[kCount]) {
    for (int64_t i = 0; i < length; ++i) {
      const Vector gradient = All(list[i].gradient);
      const float* row = weights + list[i].start;
      for (int r = 0; r < kRowCount; ++r)
        for (int v = 0; v < kCount; ++v)
          first[r][v] += gradient * Load(row + r * padded + v * kWidth);
    }
  };
  sum(entries, lengths[0], sums);
  sum(entries + s.features, lengths[1], sums + 1);
  for (int r = 0; r <= kRowCount; ++r)
    for (int v = 0; v < kCount; ++v) At(image + r * line + v * kWidth) += sums[r][v];
}

// scratch: float32 [kGroup, stride] images, [2, features, kh, padded] kernels, Entry
// [kGroup, 2, features].
void OfImages(const Shape& s, const float* kernel, const float* gradient,
              const int8_t* winners, float* x, char* scratch) {
  float* images = reinterpret_cast<float*>(scratch);
  float* weights = images + kGroup * s.stride();
  const int64_t size = s.features * s.kh * s.padded();
  Entry* entries = reinterpret_cast<Entry*>(weights + 2 * size);
  float tile[kGroup * kGroup] = {};
  std::memset(weights, 0, 2 * size * sizeof(float));
  for (int64_t tap = 0; tap < s.kh * s.run(); ++tap)
    for (int64_t feature = 0; feature < s.features; ++feature) {
      const int64_t row = feature * s.kh + tap / s.run();
      float* left = weights + row * s.padded() + tap % s.run();
      left[0] = left[size + s.channels] = kernel[tap * s.features + feature];
    }
  for (int64_t example = 0; example < s.batch; example += kGroup) {
    const int64_t rest = s.batch - example, count = rest < kGroup ? rest : kGroup;
    std::memset(images, 0, count * s.stride() * sizeof(float));
    for (int64_t square = 0; square < s.squares(); ++square) {
      int64_t lengths[kGroup][2];
      ListSquare(s, gradient, winners, square, example, count, entries, lengths);
      float* patches = images + 2 * (square / s.across * s.line() +
                                     square % s.across * s.channels);
      for (int64_t i = 0; i < count; ++i)
        for (int64_t row = 0; row < s.kh; row += s.kh - row < kRows ? 1 : kRows) {
          const auto add = [&](auto function, int64_t start) {
            function(s, entries + 2 * i * s.features, lengths[i],
                     weights + row * s.padded() + start,
                     patches + i * s.stride() + row * s.line() + start);
          };
          const bool few = s.kh - row < kRows;
          const auto many = few ? Spread<1, kPiece> : Spread<kRows, kPiece>;
          const auto one = few ? Spread<1, 1> : Spread<kRows, 1>;
          const int64_t last = s.run() + s.channels - (kPiece - 1) * kWidth;
          int64_t start = 0;
          for (; start < last; start += kPiece * kWidth) add(many, start);
          for (; start < s.run() + s.channels; start += kWidth) add(one, start);
        }
    }
    s.ForEachPiece([&](const int64_t* to, int64_t numbers, int64_t from) {
      for (int64_t i = 0; i < count; ++i)
        Copy(images + i * s.stride() + from, numbers, tile + i * kGroup);
      Transpose(tile);
      for (int64_t i = 0; i < numbers; ++i)
        Copy(tile + i * kGroup, count, x + to[i] + example);
    });
  }
}

// --- XLA's side ----------------------------------------------------------------------

// Of the images, the kernel and what is pooled. All may have lanes before their own
// dimensions.
Shape ShapeOf(const XLA_FFI_CallFrame* frame, const XLA_FFI_Buffer& images,
              const XLA_FFI_Buffer& kernel, const XLA_FFI_Buffer& pooled) {
  const int64_t* i = images.dims + images.rank - 4;
  const int64_t* k = kernel.dims + kernel.rank - 4;
  const int64_t* p = pooled.dims + pooled.rank - 4;
  const int64_t* before = Attribute(frame);
  return {i[0], i[1], i[2], i[3], before[0], before[1], k[0], k[1], k[3], p[1], p[2]};
}

}  // namespace

extern "C" {

// x, kernel, bias -> y, winners, scratch
XLA_FFI_Error* forward(XLA_FFI_CallFrame* frame) {
  if (Introduced(frame)) return nullptr;
  const auto &x = Argument(frame, 0), &kernel = Argument(frame, 1),
             &bias = Argument(frame, 2), &y = Result(frame, 0),
             &winners = Result(frame, 1), &scratch = Result(frame, 2);
  const Shape shape = ShapeOf(frame, x, kernel, y);
  for (int64_t i = 0; i < Lanes(x, 4); ++i)
    Forward(shape, Lane<float>(x, 4, i), Lane<float>(kernel, 4, i),
            Lane<float>(bias, 1, i), Lane<float>(y, 4, i), Lane<int8_t>(winners, 4, i),
            Lane<char>(scratch, 1, i));
  return nullptr;
}

// x, gradient, winners -> gradients of kernel and bias, scratch
XLA_FFI_Error* of_kernel_and_bias(XLA_FFI_CallFrame* frame) {
  if (Introduced(frame)) return nullptr;
  const auto &x = Argument(frame, 0), &gradient = Argument(frame, 1),
             &winners = Argument(frame, 2), &kernel = Result(frame, 0),
             &bias = Result(frame, 1), &scratch = Result(frame, 2);
  const Shape shape = ShapeOf(frame, x, kernel, gradient);
  for (int64_t i = 0; i < Lanes(x, 4); ++i)
    OfKernelAndBias(shape, Lane<float>(x, 4, i), Lane<float>(gradient, 4, i),
                    Lane<int8_t>(winners, 4, i), Lane<float>(kernel, 4, i),
                    Lane<float>(bias, 1, i), Lane<char>(scratch, 1, i));
  return nullptr;
}

// kernel, gradient, winners -> gradient of the images, scratch
XLA_FFI_Error* of_images(XLA_FFI_CallFrame* frame) {
  if (Introduced(frame)) return nullptr;
  const auto &kernel = Argument(frame, 0), &gradient = Argument(frame, 1),
             &winners = Argument(frame, 2), &x = Result(frame, 0),
             &scratch = Result(frame, 1);
  const Shape shape = ShapeOf(frame, x, kernel, gradient);
  for (int64_t i = 0; i < Lanes(x, 4); ++i)
    OfImages(shape, Lane<float>(kernel, 4, i), Lane<float>(gradient, 4, i),
             Lane<int8_t>(winners, 4, i), Lane<float>(x, 4, i),
             Lane<char>(scratch, 1, i));
  return nullptr;
}
}
