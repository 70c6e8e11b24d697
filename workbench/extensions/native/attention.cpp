// Attention of packed sequences, forward and backward, in float32.
//
// softmax(scale * q k^T) v for every token that is asked for, over its part's prefix and its own part up to itself. A block of queries (the
// heads that share a key are further queries of it) goes over its keys a tile at a time; of the scores no more than one
// tile is ever there. The forward pass keeps the logarithm of each row's sum, and the backward pass makes the weights from it
// again. Scores and logarithms are those of base 2, which a processor raises to powers of in fewer steps: queries come
// times log2(e), and the gradient of keys, which is made of queries, goes times its inverse.
//
// Threads share out whole blocks (forward) and, of each key head, whole trees of sequences (backward): the order of
// every sum is the same whatever their number.
//
// A name of a shape in brackets: T tokens of the pass, Q queries (all tokens, or those that are asked for), H heads, K heads of keys, D numbers of a query or key, E of a value.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "threads.h"
#include "vectors.h"

constexpr int64_t ROWS = 96;  // queries of a block: a multiple of what any stripe has
constexpr int64_t TILE = 64;  // keys of a tile
constexpr float LOG2_E = 1.44269504088896341f;

// ------------------------------------------------------------------------------------------ what Python hands over

extern "C" {

struct States {
  float* numbers;
  int64_t head, token;  // strides; the numbers of a head lie side by side

  float* of(int64_t h, int64_t t) const { return numbers + h * head + t * token; }
};

struct Part {
  int64_t start, stop, prefix_start, prefix_stop;
  int64_t first, last;  // of the queries, those of its tokens
};

struct Work {
  int64_t tokens, queries, heads, key_heads, size, value_size;
  int64_t parts, trees, threads;
  float scale;
  const Part* part;      // of each tree one after the other
  const int64_t* tree;   // [trees + 1]: the first part of each; what different trees look at is disjoint
  const int64_t* place;  // [Q]: which token a query is; they ascend within a part
  States query, key, value, out;
  float* log_sum;  // [H, Q]: logarithm of the sum of a row's exponentials, of base 2
  States grad_out, grad_query, grad_key, grad_value;
};
}

// ------------------------------------------------------------------------------------------ helpers

static int64_t rounded(int64_t count) { return (count + WIDTH - 1) / WIDTH * WIDTH; }

// Room for numbers, as they come, on a border of the processor's lines.
class Room {
 public:
  explicit Room(int64_t count) : held_(new float[count + 16]) {
    numbers = reinterpret_cast<float*>((reinterpret_cast<uintptr_t>(held_.get()) + 63) & ~63ull);
  }
  float* numbers;

 private:
  std::unique_ptr<float[]> held_;
};

template <int HALF = WIDTH / 2>
static inline float largest_of(Vector numbers) {
  Whole other;
  for (int i = 0; i < WIDTH; i++) other[i] = i ^ HALF;
  const Vector swapped = swap(numbers, numbers, other);
  numbers = swapped > numbers ? swapped : numbers;
  if constexpr (HALF > 1)
    return largest_of<HALF / 2>(numbers);
  else
    return numbers[0];
}

// ------------------------------------------------------------------------------------------ products

// One factor of a product: number (row, k) of it.
struct Left {
  const float* numbers;
  int64_t row, k;  // strides
};

enum class How { set, add };

// c [R, V vectors] = left [R, depth] b [depth, V vectors], or added to what is there
template <int R, int V>
static inline void block(const Left& left, const float* b, int64_t b_row, float* c, int64_t c_row,
                         int64_t depth, How how) {
  Vector sum[R][V] = {};
  const float* numbers = left.numbers;
  for (int64_t k = 0; k < depth; k++, b += b_row, numbers += left.k) {
    Vector row[V];
    for (int v = 0; v < V; v++) row[v] = load(b + v * WIDTH);
    for (int r = 0; r < R; r++)
      for (int v = 0; v < V; v++) sum[r][v] += numbers[r * left.row] * row[v];
  }
  for (int r = 0; r < R; r++)
    for (int v = 0; v < V; v++) {
      float* to = c + r * c_row + v * WIDTH;
      store(to, how == How::add ? load(to) + sum[r][v] : sum[r][v]);
    }
}

template <int R, int V>
static void stripe(Left left, const float* b, int64_t b_row, float* c, int64_t c_row, int64_t rows,
                   int64_t depth, How how) {
  for (; rows >= R; rows -= R, left.numbers += R * left.row, c += R * c_row)
    block<R, V>(left, b, b_row, c, c_row, depth, how);
  if constexpr (R > 1)
    if (rows) stripe<(R > 4 ? 4 : R / 2), V>(left, b, b_row, c, c_row, rows, depth, how);
}

// c [rows, columns] = left [rows, depth] b [depth, columns]; columns: a multiple of WIDTH
static void product(Left left, const float* b, int64_t b_row, float* c, int64_t c_row, int64_t rows,
                    int64_t columns, int64_t depth, How how) {
  for (; columns >= 4 * WIDTH && WIDTH == 16; columns -= 4 * WIDTH, b += 4 * WIDTH, c += 4 * WIDTH)
    stripe<6, 4>(left, b, b_row, c, c_row, rows, depth, how);
  constexpr int HIGH = WIDTH == 16 ? 12 : 6;  // accumulators stay in registers: of 32, or of 16
  for (; columns >= 2 * WIDTH; columns -= 2 * WIDTH, b += 2 * WIDTH, c += 2 * WIDTH)
    stripe<HIGH, 2>(left, b, b_row, c, c_row, rows, depth, how);
  if (columns) stripe<12, 1>(left, b, b_row, c, c_row, rows, depth, how);
}

// ------------------------------------------------------------------------------------------ states of one head

// A head's numbers token by token [T, padded]; zeros fill them up.
struct Rows {
  int64_t padded;
  Room room;
  float* numbers;

  Rows(const States& states, int64_t head, int64_t tokens, int64_t size)
      : padded(rounded(size)), room(tokens * padded), numbers(room.numbers) {
    for (int64_t t = 0; t < tokens; t++) {
      float* to = numbers + t * padded;
      std::memcpy(to, states.of(head, t), size * sizeof(float));
      std::fill(to + size, to + padded, 0.0f);
    }
  }
};

// The same the other way round, tile by tile [padded, TILE]: side by side, so that no load crosses two lines. Tiles begin
// where a part or a prefix does, so that what looks at them need not copy them.
struct Tiles {
  int64_t padded;
  std::map<std::pair<int64_t, int64_t>, int64_t> first;  // (start, stop): the first of a stretch's tiles
  std::unique_ptr<Room> room;

  Tiles(const Work& work, const States& states, int64_t head, int64_t size)
      : padded(rounded(size)) {
    int64_t tiles = 0;
    const auto add = [&](int64_t start, int64_t stop) {
      if (start < stop && first.emplace(std::make_pair(start, stop), tiles).second)
        tiles += (stop - start + TILE - 1) / TILE;
    };
    for (int64_t p = 0; p < work.parts; p++) {
      add(work.part[p].start, work.part[p].stop);
      add(work.part[p].prefix_start, work.part[p].prefix_stop);
    }
    room = std::make_unique<Room>(tiles * padded * TILE);
    for (const auto& [stretch, tile] : first)
      fill(states, head, size, stretch.first, stretch.second, tile);
  }

  void fill(const States& states, int64_t head, int64_t size, int64_t start, int64_t stop,
            int64_t tile) {
    for (int64_t t = start; t < stop; t += WIDTH)
      for (int64_t d = 0; d < padded; d += WIDTH) {
        Vector square[WIDTH] = {};
        for (int64_t i = t; i < std::min(stop, t + WIDTH); i++)
          square[i - t] = some(states.of(head, i), d, size);
        transpose(square);
        float* to = room->numbers + (tile + (t - start) / TILE) * padded * TILE + d * TILE;
        for (int64_t i = 0; i < WIDTH; i++) store(to + i * TILE + (t - start) % TILE, square[i]);
      }
  }

  // That of a stretch which begins with this key.
  const float* of(int64_t start, int64_t stop, int64_t key) const {
    return room->numbers + (first.at({start, stop}) + (key - start) / TILE) * padded * TILE;
  }
};

// Queries of a block, one by one and of each the heads that share a key: numbers of such a row.
struct Block {
  const Work& work;
  int64_t head;         // of the keys
  int64_t shared;       // heads that share it
  int64_t first, last;  // queries
  const Part& part;

  int64_t rows() const { return (last - first) * shared; }

  int64_t query(int64_t row) const { return first + row / shared; }

  int64_t token(int64_t row) const { return work.place[query(row)]; }

  float* of(const States& states, int64_t row) const {
    return states.numbers + (head * shared + row % shared) * states.head +
           query(row) * states.token;
  }

  float& log_sum(int64_t row) const {
    return work.log_sum[(head * shared + row % shared) * work.queries + query(row)];
  }

  void gather(const States& states, int64_t size, float factor, float* to) const {
    const int64_t padded = rounded(size);
    for (int64_t row = 0; row < rows(); row++, to += padded) {
      const float* from = of(states, row);
      for (int64_t d = 0; d < size; d++) to[d] = from[d] * factor;
      std::fill(to + size, to + padded, 0.0f);
    }
  }

  // The tile of one of `tiles`' stretches, of this block's, that begins with a key.
  const float* tile(const Tiles& tiles, int64_t key) const {
    const bool own = key >= part.start && key < part.stop;
    return own ? tiles.of(part.start, part.stop, key)
               : tiles.of(part.prefix_start, part.prefix_stop, key);
  }

  // task(first key, keys, first row that sees any of them) for every tile that the block sees
  template <typename Task>
  void tiles(Task task) const {
    for (int64_t key = part.prefix_start; key < part.prefix_stop; key += TILE)
      task(key, std::min(TILE, part.prefix_stop - key), int64_t{0});
    const int64_t end = work.place[last - 1] + 1;
    for (int64_t key = part.start; key < end; key += TILE)
      task(key, std::min(TILE, end - key), before(key) * shared);
  }

  // Queries of the block that stand before a key.
  int64_t before(int64_t key) const {
    const int64_t* own = work.place + first;
    return std::lower_bound(own, work.place + last, key) - own;
  }

  // How many keys of a tile a row sees.
  int64_t seen(int64_t row, int64_t key, int64_t keys) const {
    if (key < part.start || key >= part.stop) return keys;
    return std::min(keys, token(row) + 1 - key);
  }

  // Puts `value` where a row of a tile does not see a key, from this row on.
  void hide(float* tile, int64_t key, int64_t keys, int64_t row, float value) const {
    const int64_t columns = rounded(keys);
    for (; row < rows(); row++) {
      const int64_t sees = seen(row, key, keys);
      if (sees < columns)
        std::fill(tile + row * TILE + sees, tile + row * TILE + columns, value);
      else if (columns == keys)
        break;  // and so does every later one see them all
    }
  }
};

static int64_t queries_of_block(const Work& work) {
  return std::max<int64_t>(1, ROWS * work.key_heads / work.heads);
}

// Scores of a tile, of the rows that see any of it; minus infinity where a row does not see a key.
static void scores_of(const Block& block, const float* query, const Tiles& keys, int64_t key,
                      int64_t count, int64_t row, float* scores) {
  product({query + row * keys.padded, keys.padded, 1}, block.tile(keys, key), TILE,
          scores + row * TILE, TILE, block.rows() - row, rounded(count), keys.padded, How::set);
  block.hide(scores, key, count, row, -INFINITY);
}

// ------------------------------------------------------------------------------------------ forward

static void attend(const Block& block, const Tiles& keys, const Rows& values) {
  const Work& work = block.work;
  const int64_t rows = block.rows();
  const int64_t wide = values.padded;
  Room room(rows * (keys.padded + TILE + wide + WIDTH + 1));
  float* query = room.numbers;
  float* scores = query + rows * keys.padded;
  float* mixed = scores + rows * TILE;
  float* sums = mixed + rows * wide;  // by lane of a vector
  float* most = sums + rows * WIDTH;
  block.gather(work.query, work.size, work.scale * LOG2_E, query);
  std::fill(mixed, mixed + rows * wide, 0.0f);
  std::fill(sums, sums + rows * WIDTH, 0.0f);
  std::fill(most, most + rows, -INFINITY);
  block.tiles([&](int64_t key, int64_t count, int64_t first) {
    const int64_t columns = rounded(count);
    scores_of(block, query, keys, key, count, first, scores);
    for (int64_t row = first; row < rows; row++) {
      float* own = scores + row * TILE;
      Vector high = load(own);
      for (int64_t i = WIDTH; i < columns; i += WIDTH) {
        const Vector next = load(own + i);
        high = next > high ? next : high;
      }
      const float largest = largest_of(high);
      Vector sum = load(sums + row * WIDTH);
      if (largest > most[row]) {
        const Vector factor = power_of_two(all(most[row] - largest));
        most[row] = largest;
        sum *= factor;
        for (int64_t e = 0; e < wide; e += WIDTH)
          store(mixed + row * wide + e, load(mixed + row * wide + e) * factor);
      }
      for (int64_t i = 0; i < columns; i += WIDTH) {
        const Vector weight = power_of_two(load(own + i) - most[row]);
        store(own + i, weight);
        sum += weight;
      }
      store(sums + row * WIDTH, sum);
    }
    block.hide(scores, key, count, first, 0.0f);  // almost nothing so far, but times what there is
    product({scores + first * TILE, TILE, 1}, values.numbers + key * wide, wide,
            mixed + first * wide, wide, rows - first, wide, count, How::add);
  });
  for (int64_t row = 0; row < rows; row++) {
    const float sum = sum_of(load(sums + row * WIDTH));
    float* out = block.of(work.out, row);
    for (int64_t e = 0; e < work.value_size; e++) out[e] = mixed[row * wide + e] / sum;
    block.log_sum(row) = most[row] + std::log2(sum);
  }
}

// ------------------------------------------------------------------------------------------ backward

// The gradients of a block's queries; what it adds to those of its keys and values is added.
static void attend_back(const Block& block, const Tiles& keys, const Rows& key_rows,
                        const Tiles& values, float* grad_keys, float* grad_values) {
  const Work& work = block.work;
  const int64_t rows = block.rows();
  const int64_t size = keys.padded;
  const int64_t wide = values.padded;
  Room room(rows * (2 * size + wide + 2 * TILE + 2));
  float* query = room.numbers;
  float* grad_query = query + rows * size;
  float* grad = grad_query + rows * size;
  float* weights = grad + rows * wide;
  float* grad_weights = weights + rows * TILE;
  float* common = grad_weights + rows * TILE;
  float* log_sums = common + rows;
  block.gather(work.query, work.size, work.scale * LOG2_E, query);
  block.gather(work.grad_out, work.value_size, 1.0f, grad);
  std::fill(grad_query, grad_query + rows * size, 0.0f);
  for (int64_t row = 0; row < rows; row++) {
    const float* out = block.of(work.out, row);
    Vector sum{};
    for (int64_t e = 0; e < wide; e += WIDTH)
      sum += load(grad + row * wide + e) * some(out, e, work.value_size);
    common[row] = sum_of(sum);
    log_sums[row] = block.log_sum(row);
  }
  block.tiles([&](int64_t key, int64_t count, int64_t first) {
    const int64_t columns = rounded(count);
    const int64_t left = rows - first;
    scores_of(block, query, keys, key, count, first, weights);
    product({grad + first * wide, wide, 1}, block.tile(values, key), TILE,
            grad_weights + first * TILE, TILE, left, columns, wide, How::set);
    for (int64_t row = first; row < rows; row++)
      for (int64_t i = 0; i < columns; i += WIDTH) {
        float* own = weights + row * TILE + i;
        float* other = grad_weights + row * TILE + i;
        const Vector weight = power_of_two(load(own) - log_sums[row]);
        store(own, weight);
        store(other, weight * (load(other) - common[row]));
      }
    block.hide(weights, key, count, first, 0.0f);
    block.hide(grad_weights, key, count, first, 0.0f);
    product({weights + first * TILE, 1, TILE}, grad + first * wide, wide, grad_values + key * wide,
            wide, count, wide, left, How::add);
    product({grad_weights + first * TILE, 1, TILE}, query + first * size, size,
            grad_keys + key * size, size, count, size, left, How::add);
    product({grad_weights + first * TILE, TILE, 1}, key_rows.numbers + key * size, size,
            grad_query + first * size, size, left, size, count, How::add);
  });
  for (int64_t row = 0; row < rows; row++) {
    float* to = block.of(work.grad_query, row);
    for (int64_t d = 0; d < work.size; d++) to[d] = grad_query[row * size + d] * work.scale;
  }
}

static void scatter(const float* from, float factor, int64_t head, int64_t tokens, int64_t size,
                    const States& to) {
  for (int64_t t = 0; t < tokens; t++, from += rounded(size)) {
    float* own = to.of(head, t);
    for (int64_t d = 0; d < size; d++) own[d] = from[d] * factor;
  }
}

// ------------------------------------------------------------------------------------------ the passes

template <typename Kind, typename Make>
static std::vector<std::unique_ptr<Kind>> heads_of(const Work& work, Make make) {
  std::vector<std::unique_ptr<Kind>> heads(work.key_heads);
  share_out(work.key_heads, work.threads, [&](int64_t head) { heads[head] = make(head); });
  return heads;
}

static auto rows_of(const Work& work, const States& states, int64_t size) {
  return heads_of<Rows>(work, [&](int64_t head) {
    return std::make_unique<Rows>(states, head, work.tokens, size);
  });
}

static auto tiles_of(const Work& work, const States& states, int64_t size) {
  return heads_of<Tiles>(work, [&](int64_t head) {
    return std::make_unique<Tiles>(work, states, head, size);
  });
}

extern "C" void attention_forward(const Work* of) {
  const Work& work = *of;
  const auto keys = tiles_of(work, work.key, work.size);
  const auto values = rows_of(work, work.value, work.value_size);
  const int64_t queries = queries_of_block(work);
  std::vector<Block> blocks;
  for (int64_t head = 0; head < work.key_heads; head++)
    for (int64_t p = 0; p < work.parts; p++) {
      const Part& part = work.part[p];
      for (int64_t first = part.first; first < part.last; first += queries)
        blocks.push_back({work, head, work.heads / work.key_heads, first,
                          std::min(first + queries, part.last), part});
    }
  share_out(blocks.size(), work.threads, [&](int64_t i) {
    attend(blocks[i], *keys[blocks[i].head], *values[blocks[i].head]);
  });
}

extern "C" void attention_backward(const Work* of) {
  const Work& work = *of;
  const auto keys = tiles_of(work, work.key, work.size);
  const auto key_rows = rows_of(work, work.key, work.size);
  const auto values = tiles_of(work, work.value, work.value_size);
  const int64_t queries = queries_of_block(work);
  const int64_t of_keys = work.tokens * rounded(work.size);
  const int64_t of_values = work.tokens * rounded(work.value_size);
  Room grad_keys(work.key_heads * of_keys);
  Room grad_values(work.key_heads * of_values);
  std::fill_n(grad_keys.numbers, work.key_heads * of_keys, 0.0f);
  std::fill_n(grad_values.numbers, work.key_heads * of_values, 0.0f);
  share_out(work.key_heads * work.trees, work.threads, [&](int64_t i) {
    const int64_t head = i / work.trees;
    const int64_t tree = i % work.trees;
    for (int64_t p = work.tree[tree]; p < work.tree[tree + 1]; p++) {
      const Part& part = work.part[p];
      for (int64_t first = part.first; first < part.last; first += queries)
        attend_back({work, head, work.heads / work.key_heads, first,
                     std::min(first + queries, part.last), part},
                    *keys[head], *key_rows[head], *values[head], grad_keys.numbers + head * of_keys,
                    grad_values.numbers + head * of_values);
    }
  });
  share_out(work.key_heads, work.threads, [&](int64_t head) {
    scatter(grad_keys.numbers + head * of_keys, 1 / LOG2_E, head, work.tokens, work.size,
            work.grad_key);
    scatter(grad_values.numbers + head * of_values, 1.0f, head, work.tokens, work.value_size,
            work.grad_value);
  });
}
