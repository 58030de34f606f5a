// Where shipped data (topologies, scenarios, calib) lies: beside the build tree of a checkout, or under
// PREFIX/share/stepcast of an installation. Found from the program's own place, never from the working
// directory.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace stepcast {

const std::filesystem::path& data_folder();

// The file a name or path stands for: `NAME` -> data_folder()/folder/NAME.json when that exists; otherwise a
// path, relative to `beside`. Throws InputError (listing the names there are) with `file` and `pointer`.
std::filesystem::path resolve_data(const std::string& name, const std::string& folder,
                                   const std::filesystem::path& beside, const std::string& file,
                                   const std::string& pointer);

std::vector<std::string> data_names(const std::string& folder);

}  // namespace stepcast
