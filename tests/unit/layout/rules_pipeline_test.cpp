// Rules of the pipeline and of schedules: each just met and just broken.
#include <gtest/gtest.h>

#include "support/rule_cases.h"

namespace stepcast::rule_test {
namespace {

using Arguments = MegatronArguments;

const char* const kPp = "pipeline_model_parallel_size";
const char* const kChunks = "num_virtual_stages_per_pipeline_rank";
const char* const kLayers = "num_layers_per_virtual_pipeline_stage";
const char* const kString = "pipeline_model_parallel_layout";
const char* const kFirst = "decoder_first_pipeline_num_layers";
const char* const kLast = "decoder_last_pipeline_num_layers";

std::vector<RuleCase> even_cases() {
  const auto account = [](Arguments& a) {
    a.account_for_embedding_in_pipeline_split = a.account_for_loss_in_pipeline_split = true;
  };
  return {
      met(12, pipeline(8, 1), [](Arguments&) {}),
      broken(12, kPp, pipeline(4, 1), [](Arguments& a) { a.num_layers = 30; }),  // 28 would be trained
      met(12, pipeline(4, 1), [](Arguments& a) { a.num_layers = 30, a.even_split_required = false; }),
      met(12, pipeline(4, 1), [](Arguments& a) { a.num_layers = 0; }),
      met(12, pipeline(8, 1),
          [&](Arguments& a) {
            account(a);
            a.num_layers = 62, a.even_split_required = false;
          }),
      broken(12, kPp, pipeline(8, 1),
             [&](Arguments& a) {
               account(a);
               a.num_layers = 64, a.even_split_required = false;
             }),
      met(12, pipeline(8, 1),
          [](Arguments& a) { a.num_layers = 63, a.account_for_embedding_in_pipeline_split = true; }),
      broken(12, kPp, pipeline(8, 1),
             [](Arguments& a) { a.num_layers = 62, a.account_for_loss_in_pipeline_split = true; }),
      met(12, pipeline(2, 1),
          [](Arguments& a) { a.num_layers = 3, a.pipeline_model_parallel_layout = "Ett|tL"; }),
      met(13, pipeline(8, 4), [](Arguments&) {}),
      broken(13, kChunks, pipeline(8, 3), [](Arguments&) {}),
      broken(13, kChunks, pipeline(8, 4), [](Arguments& a) { a.num_layers = 80; }),  // 64 would be trained
      met(13, pipeline(8, 4), [](Arguments& a) { a.num_layers = 80, a.even_split_required = false; }),
      met(13, pipeline(8, 1), [](Arguments& a) { a.num_layers_per_virtual_pipeline_stage = 4; }),
      broken(13, kLayers, pipeline(8, 1), [](Arguments& a) { a.num_layers_per_virtual_pipeline_stage = 3; }),
      broken(13, kLayers, pipeline(8, 1), [](Arguments& a) { a.num_layers_per_virtual_pipeline_stage = 16; }),
  };
}

std::vector<RuleCase> chunk_cases() {
  return {
      met(14, pipeline(8, 2), [](Arguments&) {}),
      broken(14, kLayers, pipeline(8, 2), [](Arguments& a) { a.num_layers_per_virtual_pipeline_stage = 4; }),
      broken(14, kChunks, pipeline(2, 2),
             [](Arguments& a) { a.pipeline_model_parallel_layout = "Et*32|t*32L"; }),
      broken(14, kLayers, pipeline(2, 1),
             [](Arguments& a) {
               a.pipeline_model_parallel_layout = "Et*32|t*32L", a.num_layers_per_virtual_pipeline_stage = 8;
             }),
      met(15, pipeline(2, 2), [](Arguments&) {}),
      met(15, pipeline(4, 2), [](Arguments& a) { a.overlap_p2p_communication = false; }),
      broken(15, kChunks, pipeline(1, 2), [](Arguments&) {}),
      broken(15, kChunks, pipeline(2, 2), [](Arguments& a) { a.overlap_p2p_communication = false; }),
      broken(15, kLayers, pipeline(1, 1), [](Arguments& a) { a.num_layers_per_virtual_pipeline_stage = 8; }),
      met(15, pipeline(1, 2), [](Arguments& a) { a.schedule = "zb-v"; }),
      broken(15, kChunks, pipeline(1, 2), [](Arguments& a) { a.schedule = "interleaved"; }),
      met(18, pipeline(4, 2), [](Arguments& a) { a.global_batch_size = 16 * 8; }),
      broken(18, "global_batch_size", pipeline(4, 2), [](Arguments& a) { a.global_batch_size = 16 * 10; }),
      broken(18, "global_batch_size", pipeline(4, 2), [](Arguments& a) { a.global_batch_size = 16 * 2; }),
      broken(18, "global_batch_size", pipeline(4, 2), [](Arguments& a) { a.global_batch_size.reset(); }),
      met(18, pipeline(4, 2),
          [](Arguments& a) { a.microbatch_group_size_per_vp_stage = 8, a.global_batch_size = 16 * 8; }),
      broken(18, "microbatch_group_size_per_vp_stage", pipeline(4, 2),
             [](Arguments& a) { a.microbatch_group_size_per_vp_stage = 6, a.global_batch_size = 16 * 9; }),
      broken(18, "microbatch_group_size_per_vp_stage", pipeline(4, 2),
             [](Arguments& a) { a.microbatch_group_size_per_vp_stage = 2, a.global_batch_size = 16 * 8; }),
      broken(18, "microbatch_group_size_per_vp_stage", pipeline(4, 2),
             [](Arguments& a) { a.microbatch_group_size_per_vp_stage = 16, a.global_batch_size = 16 * 8; }),
      met(18, pipeline(4, 1), [](Arguments& a) { a.global_batch_size = 16 * 3; }),
      met(18, pipeline(4, 2), [](Arguments& a) { a.global_batch_size = 16 * 3, a.schedule = "bfs"; }),
      met(18, pipeline(4, 2), [](Arguments& a) { a.global_batch_size = 3, a.world_size = 0; }),
  };
}

std::vector<RuleCase> uneven_cases() {
  const auto outer = [](std::int64_t layers, std::int64_t pp, std::int64_t vpp,
                        std::optional<std::int64_t> first, std::optional<std::int64_t> last) {
    Arguments a = pipeline(pp, vpp);
    a.num_layers = layers;
    a.decoder_first_pipeline_num_layers = first;
    a.decoder_last_pipeline_num_layers = last;
    return a;
  };
  const auto as_is = [](Arguments&) {};
  return {
      met(16, outer(61, 8, 1, 7, 6), as_is),
      broken(16, kFirst, outer(61, 8, 1, 7, {}), as_is),
      broken(16, kLast, outer(61, 8, 1, {}, 7), as_is),
      met(16, outer(63, 8, 1, {}, 7), as_is),
      broken(16, kFirst, outer(64, 4, 1, 0, {}), as_is),
      broken(16, kLast, outer(64, 4, 1, {}, -4), as_is),
      broken(16, kFirst, outer(64, 4, 4, 14, 16), as_is),
      broken(16, kLast, outer(64, 4, 4, 16, 14), as_is),
      met(16, outer(64, 4, 4, 16, 16), as_is),
      broken(16, kFirst, outer(60, 4, 4, 16, 16), as_is),  // 14 a stage between
      broken(16, kFirst, outer(64, 2, 1, 30, 30), as_is),  // layers and no stage between
      met(16, outer(64, 2, 1, 34, 30), as_is),
      broken(16, kFirst, outer(64, 4, 1, 32, 32), as_is),  // stages and no layers between
      broken(16, kFirst, outer(64, 4, 1, 60, 60), as_is),
      broken(16, kFirst, outer(64, 1, 1, 60, {}), as_is),
      broken(16, kFirst, outer(64, 1, 1, 32, 32), as_is),
      broken(16, kFirst, outer(62, 4, 1, 14, 16),
             [](Arguments& a) { a.account_for_loss_in_pipeline_split = true; }),
      broken(16, kLayers, outer(64, 4, 1, 16, 16),
             [](Arguments& a) { a.num_layers_per_virtual_pipeline_stage = 4; }),
  };
}

std::vector<RuleCase> string_cases() {
  const auto with = [](std::int64_t pp, const char* layout) {
    Arguments a = pipeline(pp, 1);
    a.pipeline_model_parallel_layout = layout;
    return a;
  };
  const auto as_is = [](Arguments&) {};
  const auto with_mtp = [](Arguments& a) { a.num_layers = 4, a.mtp_num_layers = 1; };
  return {
      met(17, with(2, "Et*32|t*32L"), as_is),
      broken(17, kString, with(2, "Et*32|t*31L"), as_is),
      broken(17, kString, with(2, "Et*|L"), as_is),
      broken(17, kString, with(4, "Et*32|t*32L"), as_is),
      met(17, with(2, "Et*31|t*31L"), [](Arguments& a) { a.num_layers = 0; }),
      met(17, with(2, "Ett|tt|m|L"), with_mtp),  // the last stage of PP rank 0
      broken(17, kString, with(2, "Ett|ttm||L"), with_mtp),
      broken(17, kString, with(2, "Ett|tm|t|L"), with_mtp),
      broken(17, kString, with(2, "Et*32|t*32L"),
             [](Arguments& a) { a.decoder_first_pipeline_num_layers = 32; }),
      broken(17, kString, with(2, "Et*32|t*32L"),
             [](Arguments& a) { a.account_for_loss_in_pipeline_split = true; }),
  };
}

std::vector<RuleCase> other_cases() {
  const auto schedule = [](const char* name, std::int64_t pp, std::int64_t microbatches) {
    Arguments a = pipeline(pp, 1);
    if (std::string(name) == "dualpipe-v") a.num_virtual_stages_per_pipeline_rank = 2;
    a.even_split_required = false;
    a.schedule = name;
    a.world_size = 16 * pp;
    a.global_batch_size = 16 * microbatches;
    return a;
  };
  const auto as_is = [](Arguments&) {};
  const auto deferred = [](Arguments& a) { a.defer_embedding_wgrad_compute = true; };
  const auto v = [](Arguments& a) { a.enable_zero_bubble = a.zero_bubble_v_schedule = true; };
  const auto mtp = [](Arguments& a) { a.mtp_num_layers = 1; };
  const char* flush = "overlap_p2p_communication_warmup_flush";
  return {
      met(19, pipeline(4, 2), [](Arguments& a) { a.overlap_p2p_communication_warmup_flush = true; }),
      broken(19, flush, pipeline(4, 1),
             [](Arguments& a) { a.overlap_p2p_communication_warmup_flush = true; }),
      broken(19, flush, pipeline(4, 2),
             [](Arguments& a) {
               a.overlap_p2p_communication_warmup_flush = true, a.overlap_p2p_communication = false;
             }),
      met(22, pipeline(2, 1), deferred),
      broken(22, "defer_embedding_wgrad_compute", dense(), deferred),
      broken(22, "defer_embedding_wgrad_compute", pipeline(2, 1),
             [](Arguments& a) {
               a.defer_embedding_wgrad_compute = true, a.gradient_accumulation_fusion = false;
             }),
      met(54, dense(), mtp),
      met(54, dense(), [](Arguments& a) { a.mtp_num_layers = 1, a.position_embedding_type = "none"; }),
      broken(54, "position_embedding_type", dense(),
             [](Arguments& a) { a.mtp_num_layers = 1, a.position_embedding_type = "learned_absolute"; }),
      broken(54, "enable_hyper_connections", dense(),
             [](Arguments& a) { a.mtp_num_layers = 1, a.enable_hyper_connections = true; }),
      met(101, schedule("dualpipe", 8, 16), as_is),
      broken(101, "global_batch_size", schedule("dualpipe", 8, 14), as_is),
      broken(101, "global_batch_size", schedule("dualpipe", 8, 17), as_is),
      broken(101, kPp, schedule("dualpipe", 7, 16), as_is),
      met(101, schedule("dualpipe-v", 4, 9), as_is),
      met(101, schedule("dualpipe-v", 3, 6), as_is),
      broken(101, "global_batch_size", schedule("dualpipe-v", 4, 7), as_is),
      met(101, schedule("dualpipe", 8, 14), [](Arguments& a) { a.world_size = 0; }),
      met(104, pipeline(4, 1), v),
      met(104, pipeline(4, 2), v),
      broken(104, kChunks, pipeline(4, 4), v),
      broken(104, kPp, pipeline(4, 1),
             [&](Arguments& a) {
               v(a);
               a.num_layers = 60;
             }),
  };
}

}  // namespace

std::vector<RuleCase> pipeline_cases() {
  std::vector<RuleCase> all;
  for (const auto& cases : {even_cases(), chunk_cases(), uneven_cases(), string_cases(), other_cases()})
    all.insert(all.end(), cases.begin(), cases.end());
  return all;
}

namespace {

TEST(PipelineRules, JustMetAndJustBroken) { expect_cases(pipeline_cases()); }

TEST(VirtualStages, OfWhateverGivesThem) {
  EXPECT_EQ(virtual_stages(pipeline(8, 1)), 1);
  EXPECT_EQ(virtual_stages(pipeline(8, 4)), 4);
  Arguments a = pipeline(8, 1);
  a.num_layers_per_virtual_pipeline_stage = 2;
  EXPECT_EQ(virtual_stages(a), 4);
  a.num_layers_per_virtual_pipeline_stage = 3;
  EXPECT_EQ(virtual_stages(a), 2);
  a.num_layers_per_virtual_pipeline_stage = 100;
  EXPECT_EQ(virtual_stages(a), 1);
  a.num_layers = 62, a.num_layers_per_virtual_pipeline_stage = 2;
  a.account_for_embedding_in_pipeline_split = a.account_for_loss_in_pipeline_split = true;
  EXPECT_EQ(virtual_stages(a), 4);
  a.pipeline_model_parallel_layout = "Et|(tt|)*30mL";
  EXPECT_EQ(virtual_stages(a), 4);
  a.pipeline_model_parallel_layout = "E(";
  EXPECT_EQ(virtual_stages(a), 1);
  for (const std::int64_t size : {INT64_MIN, std::int64_t{-1}, std::int64_t{0}, INT64_MAX}) {
    a = pipeline(size, 1);
    a.num_layers = size, a.num_layers_per_virtual_pipeline_stage = size;
    EXPECT_GE(virtual_stages(a), 1);
  }
}

}  // namespace
}  // namespace stepcast::rule_test
