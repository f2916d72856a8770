// Convolution, bias, 2x2 max-pooling and ReLU in one pass, and its gradients, for one
// core of a CPU. moon_jax/models/convolution/fused_cpu.py describes the calls.
//
// Images are [C, H, W, B] float32. 16 examples are copied together, with zeros around
// them. Forward, one or two vectors hold one number of the 16 examples: of up to 6
// features two vectors of sums each, of one output or of two neighbours, stay in
// registers while a loop passes over the window. Backward, a pooled square has one
// output that gets a gradient, or none: three quarters of a dense convolution's products
// would be with zeros. So there each example is an image [H, W, C], in which a row of a
// window is one piece, and a list tells where the gradients are.

#include <cstddef>
#include <cstdint>
#include <cstring>

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

// Sums of kCount features over a window and over another `second` numbers behind it.
// Not inline: among what else `Outputs` keeps, the compiler has no registers for it.
template <int kCount>
__attribute__((noinline)) void Products(
    const float* window, int64_t second, const int32_t* offsets, int64_t taps,
    const float* weights, int64_t features, Vector (*products)[2]) {
  Vector sums[kCount][2] = {};
  for (int64_t tap = 0; tap < taps; ++tap, weights += features) {
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

// kCount features from `first` on, of a group of `count` examples.
template <int kCount>
void Outputs(const Shape& s, const float* images, const int32_t* offsets,
             const float* kernel, const float* bias, int64_t first, int64_t example,
             int64_t count, float* y, int8_t* winners) {
  const int64_t taps = s.kh * s.run();
  for (int64_t row = 0; row < s.down; ++row)
    for (int64_t column = 0; column < s.across; ++column) {
      Vector largest[kCount][kParts] = {};
      Integers winner[kCount][kParts] = {};
      for (int place = 0; place < kPlaces; place += kAtOnce) {
        Vector sums[kCount][2];  // of two parts of an output, or of two outputs
        const float* window =
            images + ((2 * row + place / 2) * s.line() +
                      (2 * column + place % 2) * s.channels) * kGroup;
        const int64_t second = kAtOnce == 1 ? kWidth : s.channels * kGroup;
        Products<kCount>(window, second, offsets, taps, kernel + first, s.features,
                         sums);
        for (int f = 0; f < kCount; ++f)
          for (int i = 0; i < 2; ++i) {
            const Vector sum = sums[f][i];
            const int output = place + i / kParts, part = i % kParts;
            // NaN wins, and stays.
            const Integers wins =
                output == 0 ? ~Integers{} : (sum > largest[f][part]) | (sum != sum);
            largest[f][part] = wins ? sum : largest[f][part];
            winner[f][part] = wins ? Integers{} + output : winner[f][part];
          }
      }
      for (int f = 0; f < kCount; ++f) {
        float values[kGroup];
        int8_t places[kGroup];
        for (int part = 0; part < kParts; ++part) {
          const Vector sum = largest[f][part] + All(bias[first + f]);
          const Integers off = sum <= 0;
          At(values + part * kWidth) = off ? Vector{} : sum;
          *reinterpret_cast<Bytes*>(places + part * kWidth) = __builtin_convertvector(
              off ? Integers{} + kNone : winner[f][part], Bytes);
        }
        const int64_t at =
            (((first + f) * s.down + row) * s.across + column) * s.batch + example;
        Copy(values, count, y + at);
        Copy(places, count, winners + at);
      }
    }
}

// scratch: float32 [size, kGroup] images, int32 [kh * run] offsets.
void Forward(const Shape& s, const float* x, const float* kernel, const float* bias,
             float* y, int8_t* winners, char* scratch) {
  float* images = reinterpret_cast<float*>(scratch);
  int32_t* offsets = reinterpret_cast<int32_t*>(images + s.size() * kGroup);
  for (int64_t tap = 0; tap < s.kh * s.run(); ++tap)
    offsets[tap] = (tap / s.run() * s.line() + tap % s.run()) * kGroup;
  std::memset(images, 0, s.size() * kGroup * sizeof(float));
  for (int64_t example = 0; example < s.batch; example += kGroup) {
    const int64_t rest = s.batch - example, count = rest < kGroup ? rest : kGroup;
    s.ForEachPiece([&](const int64_t* from, int64_t numbers, int64_t to) {
      for (int64_t i = 0; i < numbers; ++i)
        Copy(x + from[i] + example, count, images + (to + i) * kGroup);
    });
    const auto outputs = [&](auto function, int64_t first) {
      function(s, images, offsets, kernel, bias, first, example, count, y, winners);
    };
    int64_t first = 0;
    if (s.features % 6 == 0 || s.features % 6 >= 4)  // else two or three alone are slow
      for (; s.features - first >= 6; first += 6) outputs(Outputs<6>, first);
    for (; s.features - first >= 4; first += 4) outputs(Outputs<4>, first);
    for (; first < s.features; ++first) outputs(Outputs<1>, first);
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
