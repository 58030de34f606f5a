// Profiles: every shipped one is complete, and a broken one is refused with its file, never believed.
#include "cost/profile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include "base/data_folder.h"
#include "base/json.h"

namespace stepcast {
namespace {

namespace fs = std::filesystem;

fs::path shipped(const std::string& name) { return data_folder() / "calib" / "profiles" / (name + ".json"); }

class BrokenProfile : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("stepcast-profile-test." + std::to_string(::getpid()));
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  Profile load(const std::string& text) const {
    write_file(folder_ / "p.json", text);
    return load_profile(folder_ / "p.json");
  }
  Profile load(const Json& json) const { return load(json.dump()); }

  fs::path folder_;
};

void expect_positive(double value, const std::string& what) {
  EXPECT_TRUE(std::isfinite(value) && value > 0) << what << " is " << value;
}

void expect_rate(const GemmRate& rate, const std::string& what) {
  expect_positive(rate.flops_per_s, what);
  expect_positive(rate.hbm_bytes_per_s, what);
  expect_positive(rate.tile_m, what);
  expect_positive(rate.tile_n, what);
  expect_positive(rate.operand_bytes, what);
  expect_positive(rate.result_bytes, what);
  expect_positive(rate.dgrad_factor, what);
  expect_positive(rate.wgrad_factor, what);
  EXPECT_GE(rate.k_half, 0) << what;
  EXPECT_GE(rate.launch_s, 0) << what;
  EXPECT_TRUE(rate.wave_exponent >= 0 && rate.wave_exponent <= 1) << what;
}

TEST(ShippedProfile, IsComplete) {
  ASSERT_FALSE(data_names("calib/profiles").empty());
  for (const std::string& name : data_names("calib/profiles")) {
    const Profile p = load_profile(shipped(name));
    EXPECT_EQ(p.name, name);
    EXPECT_TRUE(p.kind == "measured" || p.kind == "fitted-public" || p.kind == "datasheet") << name;
    EXPECT_EQ(p.sha256.size(), 64u);
    expect_positive(p.sms, name);
    for (const Dtype dtype : {Dtype::kFp32, Dtype::kFp16, Dtype::kBf16}) {
      EXPECT_TRUE(p.gemm[static_cast<std::size_t>(dtype)].present) << name;
      EXPECT_TRUE(p.grouped_gemm[static_cast<std::size_t>(dtype)].present) << name;
    }
    for (std::size_t d = 0; d < p.gemm.size(); ++d) {
      EXPECT_EQ(p.gemm[d].present, p.grouped_gemm[d].present) << name << ' ' << d;
      if (!p.gemm[d].present) continue;
      expect_rate(p.gemm[d], name);
      expect_rate(p.grouped_gemm[d], name);
    }
    for (const auto& variant : p.attention) {
      for (const AttentionRate& rate : variant) {
        expect_positive(rate.fwd_flops_per_s, name);
        expect_positive(rate.bwd_rate_factor, name);
        EXPECT_GE(rate.seq_half, 0) << name;
      }
    }
    for (const double rate : p.memory_bytes_per_s) expect_positive(rate, name);
    EXPECT_TRUE(p.sustained_clock > 0.5 && p.sustained_clock <= 1) << name;
  }
}

// A ring between domains needs the rate of a protocol that two GPUs can use.
TEST(ShippedProfile, HasALineForEachCollective) {
  for (const std::string& name : data_names("calib/profiles")) {
    const Communication c = load_profile(shipped(name)).communication;
    for (const auto* lines : {&c.all_reduce, &c.all_gather, &c.reduce_scatter, &c.all_to_all, &c.send_recv}) {
      EXPECT_TRUE(std::any_of(lines->begin(), lines->end(), [](const LinkLine& l) {
        return l.min_gpus <= 2;
      })) << name;
      for (const LinkLine& line : *lines) expect_positive(line.bus_bytes_per_s, name);
    }
    EXPECT_TRUE(c.nic_efficiency > 0 && c.nic_efficiency <= 1) << name;
    for (const DispatchRate& rate :
         {c.deepep_dispatch, c.deepep_combine, c.hybridep_dispatch, c.hybridep_combine}) {
      expect_positive(rate.nvlink_bytes_per_s, name);
      expect_positive(rate.nvlink_large_domain_bytes_per_s, name);
      expect_positive(rate.nic_efficiency, name);
    }
  }
}

// Peaks of the datasheet bound every fitted rate (dense TFLOP/s: domain 6.5).
TEST(ShippedProfile, IsBelowTheDatasheet) {
  for (const std::string& name : data_names("calib/profiles")) {
    const Json j = load_json(shipped(name));
    const Profile p = load_profile(shipped(name));
    const double bf16 = j["device"]["peak_bf16_flops_per_s"];
    EXPECT_LE(p.gemm[static_cast<std::size_t>(Dtype::kBf16)].flops_per_s, bf16) << name;
    if (j["device"]["peak_fp8_flops_per_s"].is_number()) {
      const double fp8 = j["device"]["peak_fp8_flops_per_s"];
      for (const Dtype d : {Dtype::kFp8Tensor, Dtype::kFp8Block, Dtype::kMxfp8})
        EXPECT_LE(p.gemm[static_cast<std::size_t>(d)].flops_per_s, fp8) << name;
    }
    for (const auto& variant : p.attention)
      for (const AttentionRate& rate : variant) EXPECT_LE(rate.fwd_flops_per_s, bf16) << name;
    const double hbm = j["device"]["hbm_bytes_per_s"];
    for (std::size_t kind = 0; kind + 1 < p.memory_bytes_per_s.size(); ++kind)
      EXPECT_LE(p.memory_bytes_per_s[kind], hbm * 1.01) << name << ' ' << kind;
  }
}

// Spot checks against the file of the H100.
TEST(ShippedProfile, IsWhatItsFileSays) {
  const Json j = load_json(shipped("h100-sxm"));
  const Profile p = load_profile(shipped("h100-sxm"));
  const GemmRate& bf16 = p.gemm[static_cast<std::size_t>(Dtype::kBf16)];
  EXPECT_EQ(bf16.flops_per_s, j["gemm"]["bf16"]["flops_per_s"].get<double>());
  EXPECT_EQ(bf16.k_half, j["gemm"]["bf16"]["k_half"].get<double>());
  const GemmRate& block = p.grouped_gemm[static_cast<std::size_t>(Dtype::kFp8Block)];
  EXPECT_EQ(block.wgrad_factor, j["grouped_gemm"]["fp8_block"]["wgrad_factor"].get<double>());
  // FP32 GEMMs run as TF32
  EXPECT_EQ(p.gemm[static_cast<std::size_t>(Dtype::kFp32)].flops_per_s,
            j["gemm"]["tf32"]["flops_per_s"].get<double>());
  EXPECT_FALSE(p.gemm[static_cast<std::size_t>(Dtype::kMxfp8)].present);
  EXPECT_FALSE(p.gemm[static_cast<std::size_t>(Dtype::kNvfp4)].present);
  EXPECT_EQ(p.attention[static_cast<std::size_t>(AttentionVariant::kFlash3)][1].fwd_flops_per_s,
            j["attention"]["flash3"]["128"]["fwd_flops_per_s"].get<double>());
  EXPECT_EQ(p.memory_bytes_per_s[static_cast<std::size_t>(MemoryKind::kNorm)],
            j["memory"]["norm_bytes_per_s"]["value"].get<double>());
}

TEST_F(BrokenProfile, IsRefusedWithItsFile) {
  for (const char* text : {"", "{", "[]", "{}", "null", "7", R"({"schema": "stepcast/scenario/1"})"}) {
    try {
      load(std::string(text));
      ADD_FAILURE() << text;
    } catch (const InputError& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr("p.json"));
    }
  }
  EXPECT_THROW(load_profile(folder_ / "none.json"), InputError);
}

TEST_F(BrokenProfile, NamesTheValueThatIsWrong) {
  Json json = load_json(shipped("h100-sxm"));
  json["gemm"]["bf16"]["flops_per_s"] = "fast";
  json["memory"].erase("launch_s");
  try {
    load(json);
    FAIL();
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("/gemm/bf16/flops_per_s"));
    EXPECT_THAT(error.what(), testing::HasSubstr("/memory/launch_s"));
  }
}

// Rates divide: none may be zero or negative, and none so small that a time is not finite.
TEST_F(BrokenProfile, RefusesARateThatIsNotPositive) {
  for (const char* pointer :
       {"/gemm/bf16/flops_per_s", "/gemm/bf16/hbm_bytes_per_s", "/gemm/bf16/tile_m",
        "/grouped_gemm/bf16/flops_per_s", "/attention/flash2/128/fwd_flops_per_s",
        "/attention/flash2/128/bwd_rate_factor", "/memory/elementwise_bytes_per_s/value",
        "/host_link/h2d_bytes_per_s", "/sustained_clock/value", "/device/sms",
        "/communication/intra_domain/all_gather/lines/0/bus_bytes_per_s",
        "/communication/inter_node/nic_efficiency/value", "/communication/deepep/dispatch/nvlink_bytes_per_s",
        "/communication/deepep/dispatch/nic_efficiency"}) {
    for (const double value : {0.0, -1.0}) {
      Json json = load_json(shipped("h100-sxm"));
      ASSERT_TRUE(json.contains(Json::json_pointer(pointer))) << pointer;
      json[Json::json_pointer(pointer)] = value;
      EXPECT_THROW(load(json), InputError) << pointer << " = " << value;
    }
  }
}

// Of everything but texts and what says where numbers came from.
void pointers_in(const Json& json, const std::string& at, std::vector<std::string>& all) {
  if (!json.is_object()) return;
  for (const auto& [key, value] : json.items()) {
    if (key == "provenance" || key == "variants" || key == "fit" || key == "source" || key == "note" ||
        key == "range")
      continue;
    const std::string pointer = child_pointer(at, key);
    all.push_back(pointer);
    pointers_in(value, pointer, all);
  }
}

// Whatever key is missing: the profile is refused, or it loads and is complete without it.
TEST_F(BrokenProfile, SurvivesTheLossOfAnyKey) {
  const Json whole = load_json(shipped("h100-sxm"));
  std::vector<std::string> pointers;
  pointers_in(whole, "", pointers);
  ASSERT_GT(pointers.size(), 100u);
  int refused = 0;
  for (const std::string& pointer : pointers) {
    Json json = whole;
    const Json::json_pointer place(pointer);
    json[place.parent_pointer()].erase(place.back());
    try {
      const Profile p = load(json);
      for (const auto& variant : p.attention)
        for (const AttentionRate& rate : variant) expect_positive(rate.fwd_flops_per_s, pointer);
      for (const double rate : p.memory_bytes_per_s) expect_positive(rate, pointer);
      EXPECT_TRUE(p.gemm[static_cast<std::size_t>(Dtype::kBf16)].present) << pointer;
      EXPECT_TRUE(p.grouped_gemm[static_cast<std::size_t>(Dtype::kBf16)].present) << pointer;
      EXPECT_FALSE(p.communication.all_gather.empty()) << pointer;
    } catch (const InputError&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 50);
}

// And whatever value is of another type.
TEST_F(BrokenProfile, SurvivesAnyValueOfAnotherType) {
  const Json whole = load_json(shipped("host"));
  const Json values[] = {"x", nullptr, Json::array(), -1};
  std::vector<std::string> pointers;
  pointers_in(whole, "", pointers);
  for (std::size_t i = 0; i < pointers.size(); ++i) {
    Json json = whole;
    json[Json::json_pointer(pointers[i])] = values[i % 4];
    try {
      load(json);
    } catch (const InputError&) {
    }
  }
}

}  // namespace
}  // namespace stepcast
