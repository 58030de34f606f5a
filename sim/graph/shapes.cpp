#include "graph/shapes.h"

#include "model/parameters.h"

namespace stepcast {
namespace {

Dtype linear_dtype(Recipe recipe) {
  switch (recipe) {
    case Recipe::kFp32:
      return Dtype::kFp32;
    case Recipe::kFp16:
      return Dtype::kFp16;
    case Recipe::kFp8Tensor:
      return Dtype::kFp8Tensor;
    case Recipe::kFp8Block:
      return Dtype::kFp8Block;
    case Recipe::kMxfp8:
      return Dtype::kMxfp8;
    case Recipe::kNvfp4:
      return Dtype::kNvfp4;
    case Recipe::kBf16:
    case Recipe::kNvfp4Weights:
      break;  // weights are decoded to BF16 in the kernel
  }
  return Dtype::kBf16;
}

}  // namespace

Shapes shapes_of(const Scenario& s) {
  Shapes x{};
  x.tp = static_cast<double>(s.layout.tp);
  x.cp = static_cast<double>(s.layout.cp);
  x.ep = static_cast<double>(s.layout.ep);
  x.etp = static_cast<double>(s.layout.etp);
  x.batch = static_cast<double>(s.batch.micro);
  x.full_seq = static_cast<double>(s.batch.seq_len);
  x.seq = x.full_seq / x.cp;
  x.tokens = x.seq * x.batch;
  x.sequence_parallel = s.layout.sequence_parallel;
  x.local_tokens = x.sequence_parallel ? x.tokens / x.tp : x.tokens;
  x.hidden = static_cast<double>(s.model.hidden);
  x.vocab_rows = static_cast<double>(padded_vocab(s.model.vocab, s.model.vocab_divisor, s.layout.tp)) / x.tp;
  x.linear = linear_dtype(s.precision.recipe);
  x.plain = x.linear == Dtype::kFp32 || x.linear == Dtype::kFp16 ? x.linear : Dtype::kBf16;
  x.activation_bytes = x.plain == Dtype::kFp32 ? 4 : 2;
  return x;
}

double quantise_bytes_per_element(Recipe recipe) {
  switch (recipe) {
    case Recipe::kFp8Tensor:
      return 2 + 1 + 1;  // delayed scaling: amax fused, row- and column-wise copy
    case Recipe::kFp8Block:
      return 2 + 1 + 1 + 2 * 4.0 / 128;  // and an FP32 scale per 128
    case Recipe::kMxfp8:
      return 2 + 1 + 1 + 2 * 1.0 / 32;  // and an E8M0 scale per 32
    case Recipe::kNvfp4:
      return 2 + 2 + 0.5 + 0.5 + 2 * 1.0 / 16;  // amax pass, then cast; an E4M3 scale per 16
    default:
      return 0;
  }
}

}  // namespace stepcast
