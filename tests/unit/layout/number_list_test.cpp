#include "layout/number_list.h"

#include <gtest/gtest.h>

#include <string>

namespace stepcast {
namespace {

TEST(EvaluateList, ReadsNumbersAndPatterns) {
  EXPECT_EQ(evaluate_list("4"), (std::vector<std::int64_t>{4}));
  EXPECT_EQ(evaluate_list("[0, 1,1]"), (std::vector<std::int64_t>{0, 1, 1}));
  EXPECT_EQ(evaluate_list("([0]*2+[1]*3)"), (std::vector<std::int64_t>{0, 0, 1, 1, 1}));
  EXPECT_EQ(evaluate_list("3*[1]"), (std::vector<std::int64_t>{1, 1, 1}));
  EXPECT_EQ(evaluate_list("[1]*(1+2)"), (std::vector<std::int64_t>{1, 1, 1}));
  EXPECT_EQ(evaluate_list("([0,4]+[128,4]*2+[0])"), (std::vector<std::int64_t>{0, 4, 128, 4, 128, 4, 0}));
  EXPECT_EQ(evaluate_list("[1]*-2"), (std::vector<std::int64_t>{}));
}

TEST(EvaluateList, RefusesEverythingElse) {
  for (const char* text : {"", "(", "[", "]", "[1", "1+[1]", "[1]*[2]", "__import__('os')", "[1]*x", "1.5",
                           "[[1]]", "[1]*1000000", "[1]*100000*100000", "9223372036854775807+1",
                           "9223372036854775807*2", "1 2", "(1", "[1,]", "1e3"})
    EXPECT_FALSE(evaluate_list(text)) << text;
  EXPECT_FALSE(evaluate_list(std::string(100'000, '(')));
}

}  // namespace
}  // namespace stepcast
