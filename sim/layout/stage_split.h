// Which layers each pipeline stage holds. Stage q (in model order) of p ranks and v chunks belongs to PP rank
// q mod p, virtual stage q div p (Megatron's interleaving); under the V-shaped schedules rank r holds stages
// r and 2p - 1 - r.
//
// Sources: a Megatron layout string (domain: `E` embedding, `t` decoder layer, `m` MTP layer, `L` loss;
// stages split by `|`; `x*n` and `(...)*n` repeat; commas ignored), or an even split. Where the layers do not
// divide by p v and (layers + MTP + 2) does, embedding, loss and MTP layers each count as a layer; else the
// split is balanced with the outer stages lightest.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/problem.h"
#include "model/model.h"

namespace stepcast {

struct Stage {
  bool embedding = false;
  std::int64_t first_layer = 0;
  std::int64_t layers = 0;  // decoder layers first_layer, first_layer + 1, ...
  std::int64_t mtp = 0;     // MTP layers, run after the decoder layers
  bool head = false;        // final norm, output matrix and loss
};

struct StageSplit {
  std::vector<Stage> stages;  // in model order; size = pp * chunks
  std::int64_t pp = 1;
  std::int64_t chunks = 1;  // per rank
  bool v_shaped = false;    // rank r holds stages r and 2 pp - 1 - r
  std::string how;          // "layout string", "even", "embedding and loss count as layers", "balanced, ..."

  std::int64_t rank_of(std::int64_t stage) const;
  std::int64_t chunk_of(std::int64_t stage) const;
  std::int64_t stage_of(std::int64_t rank, std::int64_t chunk) const;
  std::int64_t layers_of_rank(std::int64_t rank) const;
};

// Symbols a layout string may expand to, and stages a split may have: far above any real pipeline, so that a
// hostile repeat count cannot fill the memory.
inline constexpr std::int64_t kMaxSymbols = 100'000;

// One stage a list element, symbols as in "Et", "tt", "mL". Appends a problem (pointer as given) for bad
// grammar, and is then empty. Megatron has no groups inside groups, no group without a count and no blanks;
// neither have we.
std::vector<std::string> expand_layout_string(const std::string& text, const std::string& file,
                                              const std::string& pointer, std::vector<Problem>& problems);

// Appends what breaks rule 17 in an expanded layout string: E first and L last, one of each, as many t and m
// as the model has layers, all t before m, all m in one stage that is its rank's last, pp * chunks stages.
void check_layout_stages(const std::vector<std::string>& stages, std::int64_t layers, std::int64_t mtp_layers,
                         std::int64_t pp, std::int64_t chunks, const std::string& file,
                         const std::string& pointer, std::vector<Problem>& problems);

// The split for pp ranks and `chunks` chunks a rank; `layout_string` may be empty. Appends the problems of a
// layout string; the split is then the one without it.
StageSplit split_stages(const Model& model, std::int64_t pp, std::int64_t chunks, bool v_shaped,
                        const std::string& layout_string, const std::string& file, const std::string& pointer,
                        std::vector<Problem>& problems);

// The split as a Megatron layout string, repeats folded ("Et|(tt|)*30mL").
std::string layout_string(const StageSplit& split);

// What a stage holds, for people: "E t*4", "m L", "(empty)".
std::string contents_of(const Stage& stage);

}  // namespace stepcast
