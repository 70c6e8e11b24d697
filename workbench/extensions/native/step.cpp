// One pass of tokens through a decoder of the llama and qwen kind, on one thread, in float32; or with weights in bfloat16,
// where what is multiplied by a matrix is rounded to bfloat16 as well, and all else (sums, norms, attention, keys, values,
// logits) is float32 still.
//
// Every number of a token is a sum in an order of its own: which other tokens are in the pass changes no bit of it.
// So rows are handled in blocks, but the sum of each output goes over its inputs in the same order in every block.
//
// Vectors are the compiler's own (GCC's vector extension), as wide as the processor's. A name of a shape in brackets:
// T tokens of the pass, N outputs of a matrix, K inputs of it, H heads, D numbers of a head.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "vectors.h"

constexpr int DOWN = 6;       // tokens of one block of a product
constexpr int64_t RUN = 256;  // inputs that are summed up before the sum is added to what there is: less rounding

// ------------------------------------------------------------------------------------------ what Python hands over

extern "C" {

struct Norm {
  const void* weight;  // float, or Half
  float epsilon;
};

struct Matrix {
  const void* weight;  // float, or Half
  const void* bias;    // the same, or null
  int64_t outputs;
  int64_t inputs;
  int64_t by_inputs;  // 1: the outputs of one input lie side by side; 0: the inputs of one output do
};

struct Layer {
  Norm before_attention;
  Norm before_mlp;
  Norm of_queries;  // weight null: there is none
  Norm of_keys;
  Matrix query, key, value, output;
  Matrix gate, up, down;
  float scale;  // of the scores
};

struct Model {
  int64_t layers, width, heads, kv_heads, size, inner;
  const Layer* layer;
  const void* embedding;  // [vocabulary, width]
  Norm last;
  Matrix head;
  int64_t half;  // 1: all weights are bfloat16, and each matrix has the inputs of one output side by side; 0: float32
};

// What lies before the first position of a slot: the beginning of a group's prompt, kept once. Its length is a multiple of
// WIDTH, or 0.
struct Shared {
  float* keys;  // [layers, kv heads, length, D]
  float* values;
  int64_t length;
};

struct Pass {
  int64_t tokens, kept, longest;
  const int64_t* id;        // [T]
  const int64_t* slot;      // [T]
  const int64_t* position;  // [T]
  const Shared* shared;     // [S]: of each slot
  const float* cosine;      // [positions, D]
  const float* sine;
  float* const* keys;    // of each layer: [slots, kv heads, length, D]
  float* const* values;  // the same
  int64_t slot_stride, head_stride;
  float* work;    // `room` numbers
  float* logits;  // [kept, vocabulary]
};
}

// ------------------------------------------------------------------------------------------ functions of numbers

template <class Number>
static void normalise_by(const Number* weight, const float* from, float epsilon, int64_t count,
                         float* to) {
  Vector squares{};
  int64_t i = 0;
  for (; i + WIDTH <= count; i += WIDTH) squares += load(from + i) * load(from + i);
  float sum = sum_of(squares);
  for (; i < count; i++) sum += from[i] * from[i];
  const float factor = 1.0f / std::sqrt(sum / count + epsilon);
  for (i = 0; i < count; i++) to[i] = widened(weight[i]) * (from[i] * factor);
}

static void normalise(const Model& model, const float* from, const Norm& norm, int64_t count,
                      float* to) {
  if (model.half)
    normalise_by(static_cast<const Half*>(norm.weight), from, norm.epsilon, count, to);
  else
    normalise_by(static_cast<const float*>(norm.weight), from, norm.epsilon, count, to);
}

template <class Number>
static void widen(const void* from, int64_t first, int64_t count, float* to) {
  const Number* numbers = static_cast<const Number*>(from) + first;
  for (int64_t i = 0; i < count; i++) to[i] = widened(numbers[i]);
}

// numbers * cosine + (second half negated, first half) * sine, as Hugging Face's models turn them
static void turn(float* numbers, const float* cosine, const float* sine, int64_t size) {
  const int64_t half = size / 2;
  for (int64_t i = 0; i < half; i++) {
    const float first = numbers[i];
    const float second = numbers[i + half];
    numbers[i] = first * cosine[i] - second * sine[i];
    numbers[i + half] = second * cosine[i + half] + first * sine[i + half];
  }
}

// ------------------------------------------------------------------------------------------ products

enum class How { set, add };

template <int ROWS, int VECTORS>
static inline void block(const float* x, const Matrix& matrix, int64_t first, float* y, How how) {
  const int64_t inputs = matrix.inputs;
  const int64_t outputs = matrix.outputs;
  const float* weights = static_cast<const float*>(matrix.weight);
  const float* bias = static_cast<const float*>(matrix.bias);
  Vector total[ROWS][VECTORS];
  for (int r = 0; r < ROWS; r++)
    for (int v = 0; v < VECTORS; v++)
      total[r][v] = bias ? load(bias + first + v * WIDTH) : Vector{};
  for (int64_t start = 0; start < inputs; start += RUN) {
    const int64_t end = start + RUN < inputs ? start + RUN : inputs;
    Vector sum[ROWS][VECTORS] = {};
    const float* weight = weights + start * outputs + first;
    for (int64_t k = start; k < end; k++, weight += outputs) {
      Vector column[VECTORS];
      for (int v = 0; v < VECTORS; v++) column[v] = load(weight + v * WIDTH);
      for (int v = 0; v < VECTORS; v++) __builtin_prefetch(weight + 8 * outputs + v * WIDTH);
      for (int r = 0; r < ROWS; r++)
        for (int v = 0; v < VECTORS; v++) sum[r][v] += x[r * inputs + k] * column[v];
    }
    for (int r = 0; r < ROWS; r++)
      for (int v = 0; v < VECTORS; v++) total[r][v] += sum[r][v];
  }
  for (int r = 0; r < ROWS; r++)
    for (int v = 0; v < VECTORS; v++) {
      float* to = y + r * outputs + first + v * WIDTH;
      store(to, how == How::add ? load(to) + total[r][v] : total[r][v]);
    }
}

template <int VECTORS>
static void columns(const float* x, const Matrix& matrix, int64_t tokens, int64_t first, float* y,
                    How how) {
  int64_t t = 0;
  for (; t + DOWN <= tokens; t += DOWN)
    block<DOWN, VECTORS>(x + t * matrix.inputs, matrix, first, y + t * matrix.outputs, how);
  x += t * matrix.inputs;
  y += t * matrix.outputs;
  switch (tokens - t) {
    case 1: return block<1, VECTORS>(x, matrix, first, y, how);
    case 2: return block<2, VECTORS>(x, matrix, first, y, how);
    case 3: return block<3, VECTORS>(x, matrix, first, y, how);
    case 4: return block<4, VECTORS>(x, matrix, first, y, how);
    case 5: return block<5, VECTORS>(x, matrix, first, y, how);
  }
}

static float single(const float* x, const Matrix& matrix, int64_t output) {
  const int64_t step = matrix.by_inputs ? matrix.outputs : 1;
  const float* weight = static_cast<const float*>(matrix.weight);
  weight += output * (matrix.by_inputs ? 1 : matrix.inputs);
  float total = matrix.bias ? static_cast<const float*>(matrix.bias)[output] : 0.0f;
  for (int64_t start = 0; start < matrix.inputs; start += RUN) {
    const int64_t end = start + RUN < matrix.inputs ? start + RUN : matrix.inputs;
    float sum = 0.0f;
    for (int64_t k = start; k < end; k++) sum += x[k] * weight[k * step];
    total += sum;
  }
  return total;
}

// y [T, N] = x [T, K] W + bias, where the outputs of one input lie side by side
static void by_inputs(const float* x, const Matrix& matrix, int64_t tokens, float* y, How how) {
  int64_t first = 0;
  for (; first + ACROSS * WIDTH <= matrix.outputs; first += ACROSS * WIDTH)
    columns<ACROSS>(x, matrix, tokens, first, y, how);
  for (; first + WIDTH <= matrix.outputs; first += WIDTH)
    columns<1>(x, matrix, tokens, first, y, how);
  for (; first < matrix.outputs; first++)
    for (int64_t t = 0; t < tokens; t++) {
      float* to = y + t * matrix.outputs + first;
      const float sum = single(x + t * matrix.inputs, matrix, first);
      *to = how == How::add ? *to + sum : sum;
    }
}

constexpr int WIDE = 4;             // outputs of a block of `by_outputs`
constexpr int HIGH = WIDTH / WIDE;  // tokens of it

// out [HIGH, WIDE]: each row times each column, over the first `whole` inputs. A function of its own, so that all sums
// stay in registers. `ahead`: how far away the weights lie that are wanted next (they come from far away, and in jumps).
template <bool FETCH, class Number>
[[gnu::noinline]] static void dots(const Number* const* rows, const Number* const* columns,
                                   int64_t whole, int64_t ahead, float* out) {
  constexpr int64_t STEP = sizeof(Number) == sizeof(Half) ? HALVES : WIDTH;
  const Number* row[HIGH];
  const Number* column[WIDE];
  for (int i = 0; i < HIGH; i++) row[i] = rows[i];
  for (int j = 0; j < WIDE; j++) column[j] = columns[j];
  Vector parts[HIGH][WIDE] = {};
  for (int64_t k = 0; k < whole; k += STEP) {
    decltype(load(*rows)) weight[WIDE];
    for (int j = 0; j < WIDE; j++) {
      weight[j] = load(column[j] + k);
      if (FETCH) __builtin_prefetch(column[j] + k + ahead);
    }
    for (int i = 0; i < HIGH; i++) {
      const auto number = load(row[i] + k);
      for (int j = 0; j < WIDE; j++) parts[i][j] = plus(parts[i][j], number, weight[j]);
    }
  }
  Vector all[WIDTH];
  for (int i = 0; i < WIDTH; i++) all[i] = parts[i / WIDE][i % WIDE];
  store(out, sums(all));
}

// The same where the inputs of one output lie side by side (a head that is the table of embeddings; all in bfloat16)
template <class Number>
static void by_outputs(const Number* x, const Matrix& matrix, int64_t tokens, float* y, How how) {
  constexpr int64_t NEAR = 16;  // outputs whose weights stay in the nearest memory
  constexpr int64_t STEP = sizeof(Number) == sizeof(Half) ? HALVES : WIDTH;
  const Number* table = static_cast<const Number*>(matrix.weight);
  const Number* bias = static_cast<const Number*>(matrix.bias);
  const int64_t inputs = matrix.inputs;
  const int64_t outputs = matrix.outputs;
  const int64_t whole = inputs / STEP * STEP;
  const bool plain = whole == inputs && !bias;
  for (int64_t near = 0; near < outputs; near += NEAR)
    for (int64_t t = 0; t < tokens; t += HIGH)
      for (int64_t first = near; first < near + NEAR && first < outputs; first += WIDE) {
        const Number* rows[HIGH];
        const Number* weights[WIDE];
        for (int i = 0; i < HIGH; i++) rows[i] = x + (t + i < tokens ? t + i : t) * inputs;
        for (int j = 0; j < WIDE; j++)
          weights[j] = table + (first + j < outputs ? first + j : first) * inputs;
        float numbers[WIDTH];
        if (t == 0)
          dots<true>(rows, weights, whole, NEAR * inputs, numbers);
        else
          dots<false>(rows, weights, whole, 0, numbers);
        float* corner = y + t * outputs + first;
        if (plain && how == How::set && t + HIGH <= tokens && first + WIDE <= outputs) {
          for (int i = 0; i < HIGH; i++)
            std::memcpy(corner + i * outputs, numbers + i * WIDE, WIDE * sizeof(float));
          continue;
        }
        for (int i = 0; i < HIGH && t + i < tokens; i++)
          for (int j = 0; j < WIDE && first + j < outputs; j++) {
            float sum = numbers[i * WIDE + j];
            for (int64_t k = whole; k < inputs; k++)
              sum += widened(rows[i][k]) * widened(weights[j][k]);
            if (bias) sum += widened(bias[first + j]);
            float* to = corner + i * outputs + j;
            *to = how == How::add ? *to + sum : sum;
          }
      }
}

extern "C" void round_all(const float* from, int64_t count, Half* to) {
  for (int64_t i = 0; i < count; i++) to[i] = rounded(from[i]);
}

// `narrow`: room for x in bfloat16, where weights are
static void product(const Model& model, const float* x, const Matrix& matrix, int64_t tokens,
                    Half* narrow, float* y, How how = How::set) {
  if (model.half) {
    round_all(x, tokens * matrix.inputs, narrow);
    by_outputs(static_cast<const Half*>(narrow), matrix, tokens, y, how);
  } else if (matrix.by_inputs) {
    by_inputs(x, matrix, tokens, y, how);
  } else {
    by_outputs(x, matrix, tokens, y, how);
  }
}

// ------------------------------------------------------------------------------------------ attention

static void scores_of(const float* query, const float* keys, int64_t count, int64_t size,
                      float* scores) {
  const int64_t whole = size / WIDTH * WIDTH;
  for (int64_t first = 0; first < count; first += WIDTH) {
    const float* key[WIDTH];
    for (int i = 0; i < WIDTH; i++) key[i] = keys + (first + i < count ? first + i : first) * size;
    Vector parts[WIDTH] = {};
    for (int64_t d = 0; d < whole; d += WIDTH) {
      const Vector part = load(query + d);
      for (int i = 0; i < WIDTH; i++) parts[i] += part * load(key[i] + d);
    }
    Vector sum = sums(parts);
    for (int64_t d = whole; d < size; d++)
      for (int i = 0; i < WIDTH; i++) sum[i] += query[d] * key[i][d];
    store(scores + first, sum);
  }
}

// Makes weights of scores (their exponentials, not yet divided by the sum), and returns the sum.
static float weights_of(float* scores, int64_t end) {
  const int64_t padded = (end + WIDTH - 1) / WIDTH * WIDTH;
  for (int64_t i = end; i < padded; i++) scores[i] = -INFINITY;
  Vector most = load(scores);
  for (int64_t i = WIDTH; i < padded; i += WIDTH) {
    const Vector next = load(scores + i);
    most = next > most ? next : most;
  }
  float largest = most[0];
  for (int i = 1; i < WIDTH; i++) largest = most[i] > largest ? most[i] : largest;
  Vector sum{};
  for (int64_t i = 0; i < padded; i += WIDTH) {
    const Vector weight = exponential(load(scores + i) - largest);
    store(scores + i, weight);
    sum += weight;
  }
  return sum_of(sum);
}

// Keys and values of one head of a layer, from the first position of a slot or of a prompt on.
struct Places {
  float* keys;
  float* values;
};

static Places in_slot(const Pass& pass, int64_t layer, int64_t token, int64_t head) {
  const int64_t start = pass.slot[token] * pass.slot_stride + head * pass.head_stride;
  return {pass.keys[layer] + start, pass.values[layer] + start};
}

static Places in_prompt(const Model& model, const Shared& prompt, int64_t layer, int64_t head) {
  const int64_t start = (layer * model.kv_heads + head) * prompt.length * model.size;
  return {prompt.keys + start, prompt.values + start};
}

// The values of one sequence: those of positions before `common` lie with its group's, the others in its slot.
struct Values {
  const float* shared;
  const float* own;
  int64_t common, end;
};

// out = sum over positions of weight * value, of HEADS queries that share the values
template <int HEADS, int VECTORS>
static void mix(const float* weights, int64_t stride, const Values& values, int64_t size,
                const float* divisor, float* out) {
  Vector sum[HEADS][VECTORS] = {};
  const auto add = [&](const float* from, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i++, from += size)
      for (int v = 0; v < VECTORS; v++) {
        const Vector value = load(from + v * WIDTH);
        for (int h = 0; h < HEADS; h++) sum[h][v] += weights[h * stride + i] * value;
      }
  };
  add(values.shared, 0, values.common);
  add(values.own, values.common, values.end);
  for (int h = 0; h < HEADS; h++)
    for (int v = 0; v < VECTORS; v++) store(out + h * size + v * WIDTH, sum[h][v] / divisor[h]);
}

static void mix_plainly(const float* weights, const Values& values, int64_t size, float divisor,
                        float* out) {
  for (int64_t d = 0; d < size; d++) out[d] = 0.0f;
  for (int64_t i = 0; i < values.end; i++) {
    const float* value = i < values.common ? values.shared + i * size
                                           : values.own + (i - values.common) * size;
    for (int64_t d = 0; d < size; d++) out[d] += weights[i] * value[d];
  }
  for (int64_t d = 0; d < size; d++) out[d] /= divisor;
}

template <int HEADS>
static void mix_heads(const float* weights, int64_t stride, const Values& values, int64_t size,
                      const float* divisor, float* out) {
  switch (size) {
    case WIDTH: return mix<HEADS, 1>(weights, stride, values, size, divisor, out);
    case 2 * WIDTH: return mix<HEADS, 2>(weights, stride, values, size, divisor, out);
    case 4 * WIDTH: return mix<HEADS, 4>(weights, stride, values, size, divisor, out);
    case 8 * WIDTH: return mix<HEADS, 8>(weights, stride, values, size, divisor, out);
  }
  for (int h = 0; h < HEADS; h++)
    mix_plainly(weights + h * stride, values, size, divisor[h], out + h * size);
}

// One token over the keys of its sequence up to its own. query, out [H, D]
static void attend(const Model& model, const Pass& pass, int64_t layer, int64_t token,
                   const float* query, float* scores, float* out) {
  const int64_t shared = model.heads / model.kv_heads;
  const int64_t size = model.size;
  const int64_t end = pass.position[token] + 1;
  const Shared& prompt = pass.shared[pass.slot[token]];
  const int64_t common = std::min(prompt.length, end);
  const int64_t stride = (pass.longest + WIDTH - 1) / WIDTH * WIDTH;
  for (int64_t k = 0; k < model.kv_heads; k++) {
    const Places theirs = in_prompt(model, prompt, layer, k);
    const Places own = in_slot(pass, layer, token, k);
    const Values values = {theirs.values, own.values, common, end};
    for (int64_t h = 0; h < shared; h += 2) {
      const int count = h + 1 < shared ? 2 : 1;
      const int64_t head = k * shared + h;
      float divisor[2];
      for (int i = 0; i < count; i++) {
        const float* asked = query + (head + i) * size;
        float* scored = scores + i * stride;
        scores_of(asked, theirs.keys, common, size, scored);
        scores_of(asked, own.keys, end - common, size, scored + common);
        divisor[i] = weights_of(scores + i * stride, end);
      }
      if (count == 2)
        mix_heads<2>(scores, stride, values, size, divisor, out + head * size);
      else
        mix_heads<1>(scores, stride, values, size, divisor, out + head * size);
    }
  }
}

// ------------------------------------------------------------------------------------------ the pass

static void place(const Model& model, const Layer& layer, const Pass& pass, int64_t number,
                  float* query, float* key, const float* value) {
  const int64_t size = model.size;
  for (int64_t t = 0; t < pass.tokens; t++) {
    const Shared& prompt = pass.shared[pass.slot[t]];
    const int64_t position = pass.position[t];
    const bool is_shared = position < prompt.length;
    const int64_t offset = (is_shared ? position : position - prompt.length) * size;
    const float* cosine = pass.cosine + position * size;
    const float* sine = pass.sine + position * size;
    for (int64_t h = 0; h < model.heads; h++) {
      float* own = query + (t * model.heads + h) * size;
      if (layer.of_queries.weight) normalise(model, own, layer.of_queries, size, own);
      turn(own, cosine, sine, size);
      for (int64_t d = 0; d < size; d++) own[d] *= layer.scale;
    }
    for (int64_t h = 0; h < model.kv_heads; h++) {
      float* own = key + (t * model.kv_heads + h) * size;
      if (layer.of_keys.weight) normalise(model, own, layer.of_keys, size, own);
      turn(own, cosine, sine, size);
      const Places to =
          is_shared ? in_prompt(model, prompt, number, h) : in_slot(pass, number, t, h);
      std::memcpy(to.keys + offset, own, size * sizeof(float));
      std::memcpy(to.values + offset, value + (t * model.kv_heads + h) * size,
                  size * sizeof(float));
    }
  }
}

// max(0, x) with a smooth bend: x / (1 + e^-x), times the other
static void gated(float* gate, const float* up, int64_t count) {
  int64_t i = 0;
  for (; i + WIDTH <= count; i += WIDTH) {
    const Vector x = load(gate + i);
    store(gate + i, x / (1.0f + exponential(-x)) * load(up + i));
  }
  for (; i < count; i++) gate[i] = gate[i] / (1.0f + exponential(all(-gate[i]))[0]) * up[i];
}

extern "C" int64_t room_of(const Model* model, int64_t tokens, int64_t longest) {
  const int64_t heads = (2 * model->heads + 2 * model->kv_heads) * model->size;
  const int64_t queries = model->heads * model->size;
  const int64_t widest = std::max({model->width, queries, model->inner});
  const int64_t narrow = model->half ? (widest + 1) / 2 : 0;
  return tokens * (2 * model->width + heads + 2 * model->inner + narrow) + 2 * (longest + WIDTH);
}

extern "C" void run_pass(const Model* of, const Pass* over) {
  const Model& model = *of;
  const Pass& pass = *over;
  const int64_t width = model.width;
  const int64_t tokens = pass.tokens;
  float* hidden = pass.work;
  float* normal = hidden + tokens * width;
  float* query = normal + tokens * width;
  float* mixed = query + tokens * model.heads * model.size;
  float* key = mixed + tokens * model.heads * model.size;
  float* value = key + tokens * model.kv_heads * model.size;
  float* gate = value + tokens * model.kv_heads * model.size;
  float* up = gate + tokens * model.inner;
  float* scores = up + tokens * model.inner;
  const int64_t stride = (pass.longest + WIDTH - 1) / WIDTH * WIDTH;
  Half* narrow = reinterpret_cast<Half*>(scores + 2 * stride);
  const auto embed = model.half ? widen<Half> : widen<float>;
  for (int64_t t = 0; t < tokens; t++)
    embed(model.embedding, pass.id[t] * width, width, hidden + t * width);
  for (int64_t number = 0; number < model.layers; number++) {
    const Layer& layer = model.layer[number];
    for (int64_t t = 0; t < tokens; t++)
      normalise(model, hidden + t * width, layer.before_attention, width, normal + t * width);
    product(model, normal, layer.query, tokens, narrow, query);
    product(model, normal, layer.key, tokens, narrow, key);
    product(model, normal, layer.value, tokens, narrow, value);
    place(model, layer, pass, number, query, key, value);
    for (int64_t t = 0; t < tokens; t++) {
      const int64_t first = t * model.heads * model.size;
      attend(model, pass, number, t, query + first, scores, mixed + first);
    }
    product(model, mixed, layer.output, tokens, narrow, hidden, How::add);
    for (int64_t t = 0; t < tokens; t++)
      normalise(model, hidden + t * width, layer.before_mlp, width, normal + t * width);
    product(model, normal, layer.gate, tokens, narrow, gate);
    product(model, normal, layer.up, tokens, narrow, up);
    gated(gate, up, tokens * model.inner);
    product(model, gate, layer.down, tokens, narrow, hidden, How::add);
  }
  for (int64_t t = 0; t < pass.kept; t++)
    normalise(model, hidden + t * width, model.last, width, normal + t * width);
  product(model, normal, model.head, pass.kept, narrow, pass.logits);
}

// 1 where products of bfloat16 are the processor's own, 0 where numbers are widened first
extern "C" int64_t multiplies_halves() { return HALVES > WIDTH; }
