// The layout oracles of the project (domain_oracles.json, category layout) by id, and the layouts that NVIDIA
// published (Megatron-MoE-ModelZoo, configuration only), which must be legal.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "base/json.h"
#include "layout/rule_helpers.h"
#include "layout/rules.h"
#include "layout/stage_split.h"
#include "support/rule_cases.h"

namespace stepcast::rule_test {
namespace {

using Arguments = MegatronArguments;

struct Oracle {
  std::string id;
  Arguments arguments;
  std::vector<int> broken;  // none: legal
};

Oracle oracle(const char* id, Arguments arguments, const Change& change, std::vector<int> broken = {}) {
  change(arguments);
  return {id, std::move(arguments), std::move(broken)};
}

// ---- published layouts

Arguments deepseek_v3() {
  Arguments a = moe();
  a.num_layers = 61;
  a.mtp_num_layers = 1;
  a.num_attention_heads = a.num_query_groups = 128;
  a.group_query_attention = false;
  a.multi_latent_attention = true;
  a.num_experts = 256;
  a.moe_router_topk = 8;
  a.moe_router_num_groups = 8;
  a.moe_router_group_topk = 4;
  a.moe_router_score_function = "sigmoid";
  a.moe_router_enable_expert_bias = true;
  a.moe_shared_expert_intermediate_size = 2048;
  a.moe_token_dispatcher_type = "flex";
  a.use_distributed_optimizer = a.overlap_grad_reduce = a.overlap_param_gather = true;
  return a;
}

Arguments with_ranks(Arguments a, std::int64_t world, std::int64_t tp, std::int64_t pp, std::int64_t ep,
                     std::int64_t batch, std::int64_t tokens) {
  a.world_size = world;
  a.tensor_model_parallel_size = tp;
  a.sequence_parallel = tp > 1;
  a.pipeline_model_parallel_size = pp;
  a.expert_model_parallel_size = ep;
  a.global_batch_size = batch;
  a.seq_length = tokens;
  return a;
}

Arguments with_layout(Arguments a, const char* layout) {
  a.pipeline_model_parallel_layout = layout;
  return a;
}

Arguments on_blackwell(Arguments a) {
  a.compute_capability = 10.0;
  a.fp8 = "e4m3";
  a.fp8_recipe = "mxfp8";
  a.moe_flex_dispatcher_backend = "hybridep";
  return a;
}

Arguments dsv3_h100_1024() {
  Arguments a = with_layout(with_ranks(deepseek_v3(), 1024, 2, 8, 64, 8192, 4096), "Et|(tt|)*30mL");
  a.compute_capability = 9.0;
  a.overlap_moe_expert_parallel_comm = true;
  a.recompute_granularity = "selective";
  a.recompute_modules = {"mla_up_proj", "mlp"};
  a.fp8 = "e4m3";
  a.fp8_recipe = "blockwise";
  return a;
}

Arguments dsv3_b200_256() {
  Arguments a = with_layout(with_ranks(deepseek_v3(), 256, 1, 8, 32, 2048, 4096), "Et|(tt|)*30mL");
  a.overlap_moe_expert_parallel_comm = true;
  return on_blackwell(a);
}

Arguments dsv3_offloaded(std::int64_t world, std::int64_t tp, std::int64_t batch, std::int64_t tokens) {
  Arguments a =
      with_layout(with_ranks(deepseek_v3(), world, tp, 8, 32, batch, tokens), "Et*2|(tt|)*22t|(tt|)*7mL");
  a.compute_capability = 9.0;
  a.optimizer_cpu_offload = a.use_precision_aware_optimizer = true;
  return a;
}

Arguments dsv3_gb200_256() {
  return on_blackwell(
      with_layout(with_ranks(deepseek_v3(), 256, 1, 4, 64, 8192, 4096), "Et*4|(tttt|)*14tmL"));
}

Arguments kimi_k2_gb200_128() {
  Arguments a = with_layout(with_ranks(deepseek_v3(), 128, 16, 2, 64, 128, 131072), "Et|t|(tt|)*29tL");
  a.num_attention_heads = a.num_query_groups = 64;
  a.num_experts = 384;
  a.moe_router_num_groups.reset();
  a.moe_router_group_topk.reset();
  a.mtp_num_layers = 0;
  return on_blackwell(a);
}

Arguments of_groups(std::int64_t layers, std::int64_t heads, std::int64_t groups, std::int64_t experts,
                    std::int64_t chunks) {
  Arguments a = moe();
  a.num_layers = layers;
  a.num_attention_heads = heads;
  a.num_query_groups = groups;
  a.num_experts = experts;
  a.num_virtual_stages_per_pipeline_rank = chunks;
  return a;
}

Arguments qwen3_235b_h100_256() {
  Arguments a = with_ranks(of_groups(94, 64, 4, 128, 4), 256, 2, 8, 32, 2048, 4096);
  a.account_for_embedding_in_pipeline_split = a.account_for_loss_in_pipeline_split = true;
  a.overlap_moe_expert_parallel_comm = true;
  a.recompute_granularity = "selective";
  a.recompute_modules = {"moe_act", "layernorm"};
  a.moe_token_dispatcher_type = "flex";
  return a;
}

std::vector<Oracle> published_oracles() {
  return {{"layout_pub_dsv3_h100_1024", dsv3_h100_1024(), {}},
          {"layout_pub_dsv3_b200_256", dsv3_b200_256(), {}},
          {"layout_pub_dsv3_h100_256_4k", dsv3_offloaded(256, 1, 8192, 4096), {}},
          {"layout_pub_dsv3_h100_256_128k", dsv3_offloaded(256, 32, 480, 131072), {}},
          {"layout_pub_kimi_k2_gb200_128_128k", kimi_k2_gb200_128(), {}},
          {"layout_pub_qwen3_235b_h100_256", qwen3_235b_h100_256(), {}},
          {"layout_pub_mixtral_8x22b_h100_128",
           with_ranks(of_groups(56, 48, 8, 8, 7), 128, 2, 8, 8, 256, 4096),
           {}},
          {"layout_pub_mixtral_8x7b_h100_64",
           with_ranks(of_groups(32, 32, 8, 8, 8), 64, 1, 4, 8, 256, 4096),
           {}}};
}

// ---- oracles of single rules; sizes that one leaves open are taken so that nothing else is broken

std::vector<Oracle> grid_oracles() {
  return {
      oracle("layout_world_not_divisible", dense(),
             [](Arguments& a) {
               a.tensor_model_parallel_size = 8, a.pipeline_model_parallel_size = 3, a.num_layers = 63;
             },
             {1}),
      oracle("layout_expert_grid_not_divisible", moe(),
             [](Arguments& a) {
               a.world_size = 48, a.tensor_model_parallel_size = 2, a.pipeline_model_parallel_size = 2;
               a.expert_model_parallel_size = 16, a.sequence_parallel = true;
               a.global_batch_size = 12 * 16;
             },
             {2}),
      oracle("layout_ep_larger_than_dp_ok", moe(),
             [](Arguments& a) {
               a.world_size = 256, a.tensor_model_parallel_size = 4, a.context_parallel_size = 2;
               a.pipeline_model_parallel_size = 4, a.expert_model_parallel_size = 64, a.num_experts = 256;
               a.sequence_parallel = true;
             }),
      oracle("layout_heads_tp", dense(),
             [](Arguments& a) { a.num_attention_heads = 40, a.tensor_model_parallel_size = 16; }, {3}),
      oracle("layout_kv_lt_tp_ok", dense(),
             [](Arguments& a) { a.num_query_groups = 4, a.tensor_model_parallel_size = 8; }),
      oracle("layout_kv_tp_bad", dense(),
             [](Arguments& a) {
               a.num_attention_heads = 60, a.num_query_groups = 6, a.tensor_model_parallel_size = 4;
             },
             {4}),
      oracle("layout_moe_tp_without_sp", moe(),
             [](Arguments& a) { a.num_experts = 8, a.tensor_model_parallel_size = 2; }, {8}),
      oracle("layout_cp_seq", dense(), [](Arguments& a) { a.world_size = 48, a.context_parallel_size = 3; },
             {10}),
      // torchtitan: EP divides dp_shard x cp x tp, which is all GPUs of a stage
      oracle("layout_tt_ep", moe(),
             [](Arguments& a) {
               a.world_size = 8, a.tensor_model_parallel_size = 2, a.sequence_parallel = true;
               a.expert_model_parallel_size = 16, a.global_batch_size = 4;
             },
             {2}),
  };
}

std::vector<Oracle> pipeline_oracles() {
  const auto schedule = [](const char* name, std::int64_t microbatches) {
    return [name, microbatches](Arguments& a) {
      a.schedule = name, a.world_size = a.pipeline_model_parallel_size;
      a.global_batch_size = microbatches;
    };
  };
  return {
      oracle("layout_layers_pp_account", pipeline(8, 1),
             [](Arguments& a) {
               a.num_layers = 62;
               a.account_for_embedding_in_pipeline_split = a.account_for_loss_in_pipeline_split = true;
             }),
      oracle("layout_layers_first_last", pipeline(8, 1),
             [](Arguments& a) {
               a.num_layers = 61, a.decoder_first_pipeline_num_layers = 7;
               a.decoder_last_pipeline_num_layers = 6;
             }),
      oracle("layout_layers_first_last_bad", pipeline(8, 1),
             [](Arguments& a) { a.num_layers = 61, a.decoder_first_pipeline_num_layers = 7; }, {16}),
      oracle(
          "layout_uneven_vpp", pipeline(4, 4),
          [](Arguments& a) { a.decoder_first_pipeline_num_layers = a.decoder_last_pipeline_num_layers = 14; },
          {16}),
      oracle("layout_vpp_pp1", pipeline(1, 2), [](Arguments&) {}, {15}),
      oracle("layout_vpp_pp2_no_overlap", pipeline(2, 2),
             [](Arguments& a) { a.overlap_p2p_communication = false; }, {15}),
      oracle("layout_m_remainder_ok", pipeline(4, 2),
             [](Arguments& a) { a.microbatch_group_size_per_vp_stage = 6, a.global_batch_size = 10 * 16; }),
      oracle("layout_dualpipe_m", pipeline(8, 1), schedule("dualpipe", 14), {101}),
      oracle("layout_dualpipev_m_ok", pipeline(4, 2), schedule("dualpipe-v", 9)),
      oracle("layout_cpu_offload_pp", pipeline(2, 1), [](Arguments& a) { a.cpu_offloading_num_layers = 1; },
             {40}),
  };
}

std::vector<Oracle> other_oracles() {
  const auto overlapped = [](Arguments& a) {
    a.overlap_moe_expert_parallel_comm = true, a.expert_model_parallel_size = 8;
  };
  return {
      oracle("layout_ep_overlap_pp_no_vpp", moe(),
             [&](Arguments& a) {
               overlapped(a);
               a.pipeline_model_parallel_size = 4;
             },
             {23}),
      oracle("layout_ep_overlap_full_recompute", moe(),
             [&](Arguments& a) {
               overlapped(a);
               a.recompute_granularity = "full", a.recompute_method = "uniform", a.recompute_num_layers = 1;
             },
             {23}),
      oracle("layout_delay_wgrad_alone", moe(), [](Arguments& a) { a.delay_wgrad_compute = true; }, {24}),
      oracle(
          "layout_shared_overlap_allgather", moe(),
          [](Arguments& a) { a.moe_shared_expert_overlap = true, a.moe_token_dispatcher_type = "allgather"; },
          {26}),
      oracle("layout_pad_without_cf", moe(), [](Arguments& a) { a.moe_pad_expert_input_to_capacity = true; },
             {27}),
      oracle("layout_bias_softmax", moe(), [](Arguments& a) { a.moe_router_enable_expert_bias = true; },
             {33}),
      oracle("layout_fp8_fp4", dense(), [](Arguments& a) { a.fp8 = "e4m3", a.fp4 = "e2m1"; }, {42}),
      oracle("ds_onebit_with_zero1_invalid", dense(),
             [](Arguments& a) { a.onebit_adam = true, a.zero_stage = 1; }, {102}),
      oracle("ds_onebit_zero0_ok", dense(),
             [](Arguments& a) { a.onebit_adam = true, a.bf16 = false, a.fp16 = true; }),
  };
}

std::vector<Oracle> oracles() {
  std::vector<Oracle> all;
  for (const auto& some : {grid_oracles(), pipeline_oracles(), other_oracles(), published_oracles()})
    all.insert(all.end(), some.begin(), some.end());
  return all;
}

TEST(LayoutOracles, AreRefusedOrNot) {
  for (const Oracle& o : oracles()) {
    SCOPED_TRACE(o.id);
    EXPECT_EQ(broken_rules(o.arguments), o.broken);
    for (const Violation& v : check_rules(o.arguments)) EXPECT_FALSE(v.allowed.empty()) << v.found;
  }
}

// ---- the file

StageSplit split_of(const Arguments& a) {
  Model model;
  model.layers = a.num_layers;
  model.mtp_layers = a.mtp_num_layers;
  std::vector<Problem> problems;
  return split_stages(model, a.pipeline_model_parallel_size, virtual_stages(a), false,
                      a.pipeline_model_parallel_layout, "", "", problems);
}

std::vector<std::int64_t> layers_of_ranks(const StageSplit& split) {
  std::vector<std::int64_t> layers;
  for (std::int64_t rank = 0; rank < split.pp; ++rank) layers.push_back(split.layers_of_rank(rank));
  return layers;
}

Json derived(const Arguments& a) {
  const StageSplit split = split_of(a);
  const std::vector<std::int64_t> layers = layers_of_ranks(split);
  std::int64_t all = 0;
  for (const std::int64_t some : layers) all += some;
  return {{"valid", check_rules(a).empty()},
          {"dp", data_parallel_size(a).value_or(0)},
          {"edp", expert_data_parallel_size(a).value_or(0)},
          {"microbatches", microbatches(a).value_or(0)},
          {"stages", split.stages.size()},
          {"vpp", virtual_stages(a)},
          {"decoder_layers", all},
          {"layers_per_pp_rank", layers}};
}

TEST(LayoutOracles, CoverTheFile) {
  const char* folder = std::getenv("STEPCAST_DATA");
  if (folder == nullptr) GTEST_SKIP() << "STEPCAST_DATA is not set";
  const Json file = load_json(std::filesystem::path(folder) / "domain_oracles.json");
  std::map<std::string, Arguments> known;
  for (const Oracle& o : oracles()) known[o.id] = o.arguments;
  for (const Json& entry : file["oracles"]) {
    if (entry["category"] != "layout") continue;
    const auto id = entry["id"].get<std::string>();
    ASSERT_TRUE(known.contains(id)) << id;
    const Json values = derived(known[id]);
    for (const auto& [key, expected] : entry["expected"].items()) {
      if (key == "reason") continue;
      EXPECT_EQ(values.value(key, Json()), expected) << id << " " << key;
    }
  }
}

// ---- every row of the published table

TEST(PublishedLayouts, AreLegal) {
  const std::vector<Arguments> layouts = {dsv3_h100_1024(),
                                          dsv3_b200_256(),
                                          dsv3_offloaded(256, 1, 8192, 4096),
                                          dsv3_offloaded(256, 4, 3840, 16384),
                                          dsv3_offloaded(256, 8, 1920, 32768),
                                          dsv3_offloaded(256, 16, 960, 65536),
                                          dsv3_offloaded(256, 32, 480, 131072),
                                          dsv3_offloaded(512, 64, 240, 262144),
                                          dsv3_gb200_256(),
                                          kimi_k2_gb200_128(),
                                          qwen3_235b_h100_256()};
  for (const Arguments& a : layouts) {
    SCOPED_TRACE(testing::Message() << a.world_size << " GPUs, tp " << a.tp() << ", " << a.seq_length);
    for (const Violation& v : check_rules(a)) ADD_FAILURE() << "rule " << v.rule << ": " << v.found;
  }
  const std::vector<std::int64_t> gb200 = {16, 16, 16, 13};
  EXPECT_EQ(layers_of_ranks(split_of(dsv3_gb200_256())), gb200);
  const std::vector<std::int64_t> offloaded = {8, 8, 8, 8, 8, 8, 8, 5};
  EXPECT_EQ(layers_of_ranks(split_of(dsv3_offloaded(512, 64, 240, 262144))), offloaded);
}

}  // namespace
}  // namespace stepcast::rule_test
