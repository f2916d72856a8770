// Products of matrices for one core of a CPU, in float32. moon_jax/models/products.py
// describes the call.
//
// A tile of c = a b, kRows rows of two vectors, stays in registers while a loop passes
// over the sum. b is copied in panels that are as wide as a tile, kDepth rows of at most
// kColumns columns at a time; a is copied kHeight rows and kDepth columns at a time, and
// not re-ordered. Both copies fit into the second cache. The order of a sum depends on
// the number of its terms alone, and no number depends on its place in memory.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>

#include "vectors.h"
#include "xla_call.h"

namespace {

#ifdef __AVX512F__
constexpr int kRows = 14;  // of a tile: 28 sums and three factors, of 32 registers
#else
constexpr int kRows = 6;
#endif
constexpr int kPanel = 2 * kWidth;
constexpr int kDepth = 256;
constexpr int kHeight = 126;
constexpr int kColumns = 256;
// From a copied row to the next: a multiple of 4096 bytes falls into one set of a cache.
constexpr int kLongRow = kDepth + 16;
constexpr int kShortRow = kHeight + 18;

typedef int32_t Integers __attribute__((vector_size(4 * kWidth)));


struct alignas(64) Scratch {
  float rows[std::max(kHeight * kLongRow, kDepth * kShortRow)];  // of a
  float panels[kColumns / kPanel][kDepth][kPanel];               // of b
};

// [rows, columns], with `stride` numbers from a row to the next.
struct Matrix {
  const float* numbers;
  int64_t stride;

  const float* At(int64_t row, int64_t column) const {
    return numbers + row * stride + column;
  }
};

// --- a tile --------------------------------------------------------------------------

// kCount rows of kVectors vectors of c: the sum over `depth` rows of a panel, or with
// `added` what is there and that sum. From a row of c to the next are `stride` numbers.
// In the copy of a, a row and the next term are kNextRow and kNextTerm numbers away.
template <int kCount, int kVectors, int kNextRow, int kNextTerm>
__attribute__((noinline)) void Tile(const float* a, const float (*panel)[kPanel],
                                    int64_t depth, bool added, float* c,
                                    int64_t stride) {
  Vector sums[kCount][kVectors] = {};
  for (int64_t term = 0; term < depth; ++term, a += kNextTerm) {
    Vector factors[kVectors];
    for (int v = 0; v < kVectors; ++v) factors[v] = Load(panel[term] + v * kWidth);
#pragma GCC unroll 16
    for (int row = 0; row < kCount; ++row)
      for (int v = 0; v < kVectors; ++v) sums[row][v] += All(a[row * kNextRow]) * factors[v];
  }
  for (int row = 0; row < kCount; ++row)
    for (int v = 0; v < kVectors; ++v) {
      float* place = c + row * stride + v * kWidth;
      At(place) = added ? At(place) + sums[row][v] : sums[row][v];
    }
}

using TileFunction = void (*)(const float*, const float (*)[kPanel], int64_t, bool,
                              float*, int64_t);

// The function for a number of rows, 1 to kCount.
template <int kCount, int kVectors, int kNextRow, int kNextTerm>
TileFunction TileOf(int64_t rows) {
  if constexpr (kCount > 1)
    if (rows < kCount)
      return TileOf<kCount - 1, kVectors, kNextRow, kNextTerm>(rows);
  return Tile<kCount, kVectors, kNextRow, kNextTerm>;
}

// --- copies --------------------------------------------------------------------------

// [kWidth, kWidth] -> its transpose. Each pass moves the highest bit of a number's index
// to the lowest place.
void Transpose(Vector (&rows)[kWidth]) {
  Integers low, high;
  for (int i = 0; i < kWidth; ++i) {
    low[i] = i / 2 + i % 2 * kWidth;
    high[i] = low[i] + kWidth / 2;
  }
#pragma GCC unroll 4
  for (int pass = 1; pass < kWidth; pass *= 2) {
    Vector interleaved[kWidth];
#pragma GCC unroll 8
    for (int i = 0; i < kWidth / 2; ++i) {
      interleaved[2 * i] = __builtin_shuffle(rows[i], rows[i + kWidth / 2], low);
      interleaved[2 * i + 1] = __builtin_shuffle(rows[i], rows[i + kWidth / 2], high);
    }
    for (int i = 0; i < kWidth; ++i) rows[i] = interleaved[i];
  }
}

// Columns of b, [depth, columns], as panels; the last one is filled up with zeros.
void CopyPanels(const Matrix& b, int64_t depth, int64_t columns, Scratch* scratch) {
  const int64_t whole = columns / kPanel, rest = columns % kPanel;
  for (int64_t row = 0; row < depth; ++row) {
    const float* from = b.At(row, 0);
    for (int64_t panel = 0; panel < whole; ++panel)
      std::memcpy(scratch->panels[panel][row], from + panel * kPanel,
                  kPanel * sizeof(float));
    if (rest) {
      float* to = scratch->panels[whole][row];
      std::memset(to, 0, kPanel * sizeof(float));
      std::memcpy(to, from + whole * kPanel, rest * sizeof(float));
    }
  }
}

// The same of a matrix that is there as its transpose, [columns, depth].
void CopyTransposed(const Matrix& b, int64_t depth, int64_t columns, Scratch* scratch) {
  for (int64_t column = 0; column < columns; column += kWidth)
    for (int64_t row = 0; row < depth; row += kWidth) {
      const int64_t numbers = std::min<int64_t>(kWidth, depth - row);
      const int64_t lines = std::min<int64_t>(kWidth, columns - column);
      Vector tile[kWidth] = {};
      if (numbers == kWidth && lines == kWidth)
        for (int i = 0; i < kWidth; ++i) tile[i] = Load(b.At(column + i, row));
      else
        for (int64_t i = 0; i < lines; ++i)
          std::memcpy(&tile[i], b.At(column + i, row), numbers * sizeof(float));
      Transpose(tile);
      float(*to)[kPanel] = scratch->panels[column / kPanel] + row;
      for (int64_t i = 0; i < numbers; ++i) At(to[i] + column % kPanel) = tile[i];
    }
}

// --- the product ---------------------------------------------------------------------

// c = a b, [m, n] = [m, k] [k, n]. kOfA: a is there as [k, m]; kOfB: b as [n, k].
template <bool kOfA, bool kOfB>
void Product(const Matrix& a, const Matrix& b, int64_t m, int64_t n, int64_t k,
             float* c, Scratch* scratch) {
  constexpr int kNextRow = kOfA ? 1 : kLongRow, kNextTerm = kOfA ? kShortRow : 1;
  if (k == 0) std::memset(c, 0, m * n * sizeof(float));
  for (int64_t term = 0; term < k;) {
    // All parts of a sum are about as long.
    const int64_t parts = (k - term + kDepth - 1) / kDepth;
    const int64_t depth = (k - term + parts - 1) / parts;
    const bool added = term > 0;
    for (int64_t column = 0; column < n; column += kColumns) {
      const int64_t columns = std::min<int64_t>(kColumns, n - column);
      if constexpr (kOfB)
        CopyTransposed({b.At(column, term), b.stride}, depth, columns, scratch);
      else
        CopyPanels({b.At(term, column), b.stride}, depth, columns, scratch);
      for (int64_t top = 0; top < m; top += kHeight) {
        const int64_t height = std::min<int64_t>(kHeight, m - top);
        if constexpr (kOfA)
          for (int64_t i = 0; i < depth; ++i)
            std::memcpy(scratch->rows + i * kShortRow, a.At(term + i, top),
                        height * sizeof(float));
        else
          for (int64_t i = 0; i < height; ++i)
            std::memcpy(scratch->rows + i * kLongRow, a.At(top + i, term),
                        depth * sizeof(float));
        for (int64_t row = 0; row < height;) {
          const int64_t tiles = (height - row + kRows - 1) / kRows;
          const int64_t count = (height - row + tiles - 1) / tiles;
          const float* of_a = scratch->rows + row * kNextRow;
          for (int64_t start = 0; start < columns; start += kPanel) {
            const int64_t width = std::min<int64_t>(kPanel, columns - start);
            const auto tile = width > kWidth
                                  ? TileOf<kRows, 2, kNextRow, kNextTerm>(count)
                                  : TileOf<kRows, 1, kNextRow, kNextTerm>(count);
            const auto panel = scratch->panels[start / kPanel];
            float* of_c = c + (top + row) * n + column + start;
            if (width % kWidth == 0) {
              tile(of_a, panel, depth, added, of_c, n);
              continue;
            }
            float sums[kRows][kPanel];
            tile(of_a, panel, depth, false, sums[0], kPanel);
            for (int64_t i = 0; i < count; ++i)
              for (int64_t j = 0; j < width; ++j)
                of_c[i * n + j] = added ? of_c[i * n + j] + sums[i][j] : sums[i][j];
          }
          row += count;
        }
      }
    }
    term += depth;
  }
}

// --- XLA's side ----------------------------------------------------------------------

// Where the matrices of a buffer [..., rows, columns] are, one after the other in the
// order of the result's. A dimension of 1 stands for as many as the result has.
class Matrices {
 public:
  Matrices(const XLA_FFI_Buffer& buffer, const XLA_FFI_Buffer& result)
      : buffer_(buffer), result_(result) {}

  int64_t rows() const { return buffer_.dims[buffer_.rank - 2]; }
  int64_t columns() const { return buffer_.dims[buffer_.rank - 1]; }

  Matrix operator[](int64_t index) const {
    int64_t offset = 0, stride = rows() * columns();
    for (int64_t axis = buffer_.rank - 3; axis >= 0; --axis) {
      const int64_t size = result_.dims[axis];
      if (buffer_.dims[axis] > 1) offset += index % size * stride;
      index /= size;
      stride *= buffer_.dims[axis];
    }
    return {static_cast<float*>(buffer_.data) + offset, columns()};
  }

 private:
  const XLA_FFI_Buffer &buffer_, &result_;
};

template <bool kOfA, bool kOfB>
void Products(const Matrices& a, const Matrices& b, const XLA_FFI_Buffer& result) {
  static thread_local const auto scratch = std::make_unique<Scratch>();
  const int64_t m = result.dims[result.rank - 2], n = result.dims[result.rank - 1];
  const int64_t k = kOfA ? a.rows() : a.columns();
  int64_t count = m * n > 0;
  for (int64_t axis = 0; axis < result.rank - 2; ++axis) count *= result.dims[axis];
  for (int64_t i = 0; i < count; ++i)
    Product<kOfA, kOfB>(a[i], b[i], m, n, k,
                        static_cast<float*>(result.data) + i * m * n, scratch.get());
}

}  // namespace

// a, b -> c; attribute: whether a, whether b, is there as its transpose
extern "C" XLA_FFI_Error* product(XLA_FFI_CallFrame* frame) {
  if (Introduced(frame)) return nullptr;
  const auto& result = Result(frame, 0);
  const Matrices a(Argument(frame, 0), result), b(Argument(frame, 1), result);
  const int64_t* transposed = Attribute(frame);
  const auto products = transposed[0]   ? transposed[1] ? Products<true, true>
                                                        : Products<true, false>
                        : transposed[1] ? Products<false, true>
                                        : Products<false, false>;
  products(a, b, result);
  return nullptr;
}
