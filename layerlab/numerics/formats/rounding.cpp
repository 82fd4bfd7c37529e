// Rounding in one pass: what _nearby of rounding.py does, bit for bit, without its intermediate tensors.
//
// Whole-number arithmetic on the bits, no branch inside the loop, and no header but the standard
// ones: it compiles in a second, and depends on no version of torch or Python.
#include <algorithm>
#include <cstdint>
#include <cstring>

namespace {

// As in grid.py, which says what each is.
struct Grid {
  int64_t stored, digits, normal, base, cap, wide, least, most, above, below, infinite, infinity, kept;
};

// The same in words of the carrier.
template <class Word>
struct Numbers {
  Word digits, normal, base, cap, least, most, above, below, infinite, infinity, kept;
  explicit Numbers(const Grid& grid)
      : digits(grid.digits), normal(grid.normal), base(grid.base), cap(grid.cap),
        least(grid.least), most(grid.most), above(grid.above), below(grid.below),
        infinite(grid.infinite), infinity(grid.infinity), kept(grid.kept) {}
};

// How many bits are dropped: always as many; more where the format is subnormal; by the leading digit.
enum Kind { uniform, bounded, wide };

enum Mode { nearest, away, zero, up, down, stochastic };

// float32 and float64 as whole numbers; `Length` finds how many binary digits a number has.
struct Single {
  using Word = int32_t;
  using Unsigned = uint32_t;
  using Real = float;
  static constexpr Word stored = 23, bias = 127;
};
struct Double {
  using Word = int64_t;
  using Unsigned = uint64_t;
  using Real = double;
  static constexpr Word stored = 52, bias = 1023;
};

template <class Carrier, Mode mode, Kind kind>
inline typename Carrier::Word rounded(typename Carrier::Word bits, typename Carrier::Word noise,
                                      const Numbers<typename Carrier::Word>& grid) {
  using Word = typename Carrier::Word;
  using Unsigned = typename Carrier::Unsigned;
  constexpr Word stored = Carrier::stored;
  constexpr Word all = static_cast<Word>(~Unsigned(0) >> 1);
  const Word size = bits & all;
  const Word sign = bits ^ size;
  // What lies above the significand: the exponent field less one, where it stands.
  constexpr Word hidden = Word(1) << stored;
  const Word above = std::max<Word>(size - hidden, 0) & -hidden;
  Word significand = size - above;

  Word drop = grid.base - 1 - (above >> stored);
  if (kind == wide) {
    // A whole number below 2^(stored + 1) is exact as a real one, whose exponent is its length.
    const typename Carrier::Real real = static_cast<typename Carrier::Real>(significand);
    Word length;
    std::memcpy(&length, &real, sizeof length);
    length = (length >> stored) - (Carrier::bias - 1);
    drop = std::max(drop, std::max<Word>(length - grid.digits, 0));
  } else {
    drop = kind == uniform ? grid.normal : std::max(drop, grid.normal);
  }
  if (mode == stochastic) {
    significand >>= std::min<Word>(std::max<Word>(drop - grid.cap, 0), stored + 1);
  }
  drop = std::min(drop, grid.cap);

  const Word ones = (Word(1) << drop) - 1;
  Word added = 0;
  if (mode == nearest) added = (ones >> 1) + ((significand >> drop) & ones & 1);
  if (mode == away) added = (ones >> 1) + (ones & 1);
  if (mode == up) added = sign ? 0 : ones;
  if (mode == down) added = sign ? ones : 0;
  if (mode == stochastic) added = noise & ones;
  const Word kept = (significand + added) & ~ones;

  Word found = kept + above;
  if (mode == nearest || mode == away || mode == zero) {
    found = kept ? found : 0;
  } else {
    // Where all bits but the carry are dropped, there is the smallest number or nothing.
    const Word tiny = kept ? grid.least : 0;
    found = drop > stored ? tiny : found;
  }
  if (mode == nearest || mode == away || mode == stochastic) {
    // Both signs overflow alike, and as an infinity does.
    found = (found > grid.most) | (size == grid.infinity) ? grid.infinite : found;
  } else {
    found = found > grid.most ? (sign ? grid.below : grid.above) : found;
    found = size == grid.infinity ? grid.infinite : found;
  }
  found = size >= grid.kept ? size : found;
  return found | sign;
}

// One thread's share. What does not change lies in locals, so that the loop is free to be vectorized;
// elements do not depend on each other, even where the result overwrites them.
template <class Carrier, Mode mode, Kind kind>
void share(const typename Carrier::Word* x, const typename Carrier::Word* noise,
           typename Carrier::Word* out, int64_t length, const Numbers<typename Carrier::Word> grid) {
#pragma omp simd
  for (int64_t i = 0; i < length; ++i) {
    out[i] = rounded<Carrier, mode, kind>(x[i], mode == stochastic ? noise[i] : 0, grid);
  }
}

// Elements that are looked over before they are rounded: few enough to stay in the nearest cache.
constexpr int64_t block = 2048;

// Where the format has no subnormals of the carrier, only those need their leading digit found, and
// nearly always there are none.
template <class Carrier, Mode mode>
void share_wide(const typename Carrier::Word* x, const typename Carrier::Word* noise,
                typename Carrier::Word* out, int64_t length,
                const Numbers<typename Carrier::Word> grid) {
  using Unsigned = typename Carrier::Unsigned;
  constexpr Unsigned hidden = Unsigned(1) << Carrier::stored;
  for (int64_t begin = 0; begin < length; begin += block) {
    const int64_t count = std::min(block, length - begin);
    const auto from = x + begin, drawn = mode == stochastic ? noise + begin : noise;
    Unsigned subnormal = 0;
#pragma omp simd reduction(| : subnormal)
    for (int64_t i = 0; i < count; ++i) {
      // Zero, less one, is the largest of all.
      const Unsigned below = ((static_cast<Unsigned>(from[i]) << 1) >> 1) - 1;
      subnormal |= below < hidden - 1 ? 1 : 0;
    }
    if (subnormal) {
      share<Carrier, mode, wide>(from, drawn, out + begin, count, grid);
    } else {
      share<Carrier, mode, uniform>(from, drawn, out + begin, count, grid);
    }
  }
}

template <class Carrier, Mode mode, Kind kind>
void part(const typename Carrier::Word* x, const typename Carrier::Word* noise,
          typename Carrier::Word* out, int64_t length,
          const Numbers<typename Carrier::Word>& grid) {
  if (kind == wide) {
    share_wide<Carrier, mode>(x, noise, out, length, grid);
  } else {
    share<Carrier, mode, kind>(x, noise, out, length, grid);
  }
}

template <class Carrier, Mode mode, Kind kind>
void run(const typename Carrier::Word* x, const typename Carrier::Word* noise,
         typename Carrier::Word* out, int64_t length, const Grid& given, int threads) {
  const Numbers<typename Carrier::Word> grid(given);
  if (threads < 2) {
    part<Carrier, mode, kind>(x, noise, out, length, grid);
    return;
  }
  // Shares begin at a multiple of 64 elements: no two threads write to one line of the cache.
  const int64_t each = (length / threads / 64 + 1) * 64;
#pragma omp parallel for num_threads(threads) schedule(static, 1)
  for (int thread = 0; thread < threads; ++thread) {
    const int64_t begin = std::min(each * thread, length);
    const int64_t end = std::min(begin + each, length);
    part<Carrier, mode, kind>(x + begin, mode == stochastic ? noise + begin : noise, out + begin,
                              end - begin, grid);
  }
}

template <class Carrier, Mode mode>
void chosen(const void* x, const void* noise, void* out, int64_t length, const Grid& grid,
            int threads) {
  using Word = typename Carrier::Word;
  const auto from = static_cast<const Word*>(x);
  const auto drawn = static_cast<const Word*>(noise);
  const auto to = static_cast<Word*>(out);
  if (grid.wide) {
    run<Carrier, mode, wide>(from, drawn, to, length, grid, threads);
  } else if (grid.base - 1 <= grid.normal) {
    run<Carrier, mode, uniform>(from, drawn, to, length, grid, threads);
  } else {
    run<Carrier, mode, bounded>(from, drawn, to, length, grid, threads);
  }
}

template <class Carrier>
void dispatch(const void* x, const void* noise, void* out, int64_t length, const Grid& grid,
              int mode, int threads) {
  switch (mode) {
    case nearest: return chosen<Carrier, nearest>(x, noise, out, length, grid, threads);
    case away: return chosen<Carrier, away>(x, noise, out, length, grid, threads);
    case zero: return chosen<Carrier, zero>(x, noise, out, length, grid, threads);
    case up: return chosen<Carrier, up>(x, noise, out, length, grid, threads);
    case down: return chosen<Carrier, down>(x, noise, out, length, grid, threads);
    default: return chosen<Carrier, stochastic>(x, noise, out, length, grid, threads);
  }
}

}  // namespace

extern "C" void layerlab_round_32(const void* x, const void* noise, void* out, int64_t length,
                                  const void* grid, int mode, int threads) {
  dispatch<Single>(x, noise, out, length, *static_cast<const Grid*>(grid), mode, threads);
}

extern "C" void layerlab_round_64(const void* x, const void* noise, void* out, int64_t length,
                                  const void* grid, int mode, int threads) {
  dispatch<Double>(x, noise, out, length, *static_cast<const Grid*>(grid), mode, threads);
}
