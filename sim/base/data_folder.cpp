#include "base/data_folder.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <stdexcept>

#include "base/problem.h"

namespace stepcast {
namespace fs = std::filesystem;
namespace {

fs::path find_data_folder() {
  const fs::path program = fs::read_symlink("/proc/self/exe");
  for (fs::path folder = program.parent_path(); folder != folder.parent_path();
       folder = folder.parent_path()) {
    for (const fs::path& candidate : {folder / "share" / "stepcast", folder}) {
      if (fs::exists(candidate / "topologies") && fs::exists(candidate / "scenarios" / "schemas"))
        return candidate;
    }
  }
  throw std::runtime_error("no shipped data (topologies, scenarios, calib) found above " + program.string());
}

}  // namespace

const fs::path& data_folder() {
  static const fs::path folder = find_data_folder();
  return folder;
}

std::vector<std::string> data_names(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(data_folder() / folder)) {
    if (entry.path().extension() == ".json") names.push_back(entry.path().stem().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

fs::path resolve_data(const std::string& name, const std::string& folder, const fs::path& beside,
                      const std::string& file, const std::string& pointer) {
  const bool plain = name.find('/') == std::string::npos && !name.empty() && name.size() < 200;
  if (plain) {
    fs::path shipped = data_folder() / folder / (name + ".json");
    if (fs::exists(shipped)) return shipped;
  }
  std::error_code code;
  fs::path path = fs::path(name).is_absolute() ? fs::path(name) : beside / name;
  if (name.size() < 4000 && fs::is_regular_file(path, code)) return path;
  throw InputError({file, pointer, fmt::format("\"{}\" is neither a shipped name nor a file", name),
                    fmt::format("one of {}, or a path", fmt::join(data_names(folder), ", "))});
}

}  // namespace stepcast
