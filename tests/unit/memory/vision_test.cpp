#include "memory/vision.h"

#include <gtest/gtest.h>

#include "memory/activations.h"
#include "memory/ledger.h"
#include "memory/states.h"
#include "model/parameters.h"
#include "unit/memory/fixtures.h"

namespace stepcast::memory_test {
namespace {

// Qwen3-VL's encoder: 27 layers of 1152, MLP 4304 (two matrices), 16 heads, patches of 16, merged 2 x 2, three
// taps; 4096 patches a sequence.
Model qwen_vl() {
  Model m = llama70b(8);
  Vision v;
  v.layers = 27;
  v.hidden = 1152;
  v.ffn_hidden = 4304;
  v.heads = 16;
  v.deepstack = 3;
  v.patches_per_sequence = 4096;
  m.vision = v;
  return m;
}

constexpr double kPatches = 4096;
// A patch: norms 4 x 2304; q, k, v, output 4 x 2304; log-sum-exp 64; FFN 2 x 2 x 4304.
constexpr double kWhole = 4 * 2304, kSplit = 4 * 2304 + 64 + 2 * 2 * 4304;
constexpr double kPixels = 2 * 3 * 2 * 256;
constexpr double kMergerNorm = 2 * 2304, kMergerLinear = 2 * 2304;

TEST(Vision, SavesWhatItsLayersSave) {
  Scenario s = scenario(qwen_vl(), 8);
  const double expected = 27 * (kWhole + kSplit) + kPixels + 4 * (kMergerNorm + kMergerLinear);
  EXPECT_DOUBLE_EQ(vision_memory(s).kept, kPatches * expected);
  s.batch.micro = 3;
  EXPECT_DOUBLE_EQ(vision_memory(s).kept, 3 * kPatches * expected);
  s.precision.recipe = Recipe::kFp8Tensor;  // the encoder stays in bf16
  EXPECT_DOUBLE_EQ(vision_memory(s).kept, 3 * kPatches * expected);
}

// Heads, FFN and the mergers' hidden layer are split over TP; norms are not, nor are patches over CP.
TEST(Vision, UnderTensorAndContextParallel) {
  const double expected = 27 * (kWhole + kSplit / 4) + kPixels + 4 * (kMergerNorm + kMergerLinear / 4);
  EXPECT_DOUBLE_EQ(vision_memory(scenario(qwen_vl(), 8, layout(4, 1, 1))).kept, kPatches * expected);
  EXPECT_DOUBLE_EQ(vision_memory(scenario(qwen_vl(), 8, layout(4, 2, 1))).kept, kPatches * expected);
}

TEST(Vision, FullRecomputeKeepsLayerInputs) {
  Scenario s = scenario(qwen_vl(), 8);
  const VisionMemory whole = vision_memory(s);
  s.recompute = {Granularity::kFull, {}, {}};
  const VisionMemory inputs = vision_memory(s);
  EXPECT_DOUBLE_EQ(inputs.kept, kPatches * (27 * 2304 + kPixels + 4 * (kMergerNorm + kMergerLinear)));
  EXPECT_DOUBLE_EQ(inputs.on_top - whole.on_top, kPatches * (kWhole + kSplit - 2304));
}

// The first stage alone: weights in bf16 under any recipe, gradients, sharded optimizer, activations.
TEST(Vision, IsOnTheFirstStage) {
  Scenario with = scenario(qwen_vl(), 8, layout(1, 1, 2));
  with.precision.recipe = Recipe::kFp8Tensor;
  Scenario without = with;
  without.model.vision.reset();
  const MemoryReport a = report_of(with), b = report_of(without);
  const auto parameters = static_cast<double>(vision_parameters(with.model).total());
  EXPECT_NEAR(a.stages[0].parameters - b.stages[0].parameters, 2 * parameters, 1);
  EXPECT_NEAR(a.stages[0].gradients - b.stages[0].gradients, 4 * parameters, 1);
  EXPECT_NEAR(a.stages[0].optimizer - b.stages[0].optimizer, 12 * parameters / 4, 1);
  EXPECT_NEAR(a.stages[0].activations - b.stages[0].activations, 2 * vision_memory(with).kept, 1);
  EXPECT_EQ(a.stages[1].device, b.stages[1].device);
}

TEST(Vision, IsNothingInATextModel) {
  EXPECT_EQ(vision_memory(scenario(llama70b(), 8)).kept, 0);
  EXPECT_EQ(vision_memory(scenario(llama70b(), 8)).on_top, 0);
}

}  // namespace
}  // namespace stepcast::memory_test
