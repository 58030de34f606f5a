// Records are forecast on several threads that share profiles, schemas and data folders.
#include <gtest/gtest.h>

#include "base/json.h"
#include "observe/validate.h"

namespace stepcast {
namespace {

TEST(ValidateThreads, GiveTheSameDocument) {
  const std::filesystem::path folder = std::filesystem::path(STEPCAST_SOURCE_DIR) / "scenarios" / "published";
  const std::vector<std::filesystem::path> files = {folder / "mlperf-training-results-mlcommons.json",
                                                    folder / "nemotron-4-15b-technical-report.json"};
  const auto quiet = [](std::size_t, std::size_t) {};
  const std::string one = validation_document(validate_runs(files, 1, quiet)).dump();
  EXPECT_EQ(one, validation_document(validate_runs(files, 4, quiet)).dump());
}

}  // namespace
}  // namespace stepcast
