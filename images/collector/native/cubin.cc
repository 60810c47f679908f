#include "cubin.h"

#include <elf.h>

#include <cstring>
#include <string_view>

namespace accel_trace {
namespace {

constexpr uint16_t kMachineCuda = 190;
constexpr size_t kInstruction = 16;
// Of a kernel's .nv.info: format (4: a payload whose size follows) and attribute of an entry.
constexpr uint8_t kSized = 4;
constexpr uint8_t kParameter = 0x17, kLongParameter = 0x45;  // size in bits 18-31, in bits 0-15
constexpr size_t kParameterBytes = 12;

// The low nine bits of an instruction name its operation, whatever its operands are.
uint32_t use_of(uint64_t instruction) {
  switch (instruction & 0x1ff) {
    case 0x1b4: return kTensorMapLoad;    // UTMALDG
    case 0x1b5: return kTensorMapStore;   // UTMASTG
    case 0x1b6: return kTensorMapReduce;  // UTMAREDG
    case 0x160:                           // TEX
    case 0x163:                           // TLD4
    case 0x166:                           // TLD
    case 0x16c: return kTextureRead;      // TXD
    case 0x199:                           // SULD
    case 0x19d: return kSurfaceAccess;    // SUST
    default: return 0;
  }
}

class Reader {
 public:
  Reader(const void* file, size_t bytes) : file_(static_cast<const char*>(file)), bytes_(bytes) {}

  template <class T>
  bool get(uint64_t at, T& out) const {
    if (at > bytes_ || bytes_ - at < sizeof out) return false;
    memcpy(&out, file_ + at, sizeof out);
    return true;
  }
  std::string_view part(uint64_t at, uint64_t size) const {
    return at <= bytes_ && size <= bytes_ - at ? std::string_view(file_ + at, size)
                                               : std::string_view();
  }
  std::string_view word(std::string_view in, uint64_t at) const {
    if (at >= in.size()) return {};
    const size_t end = in.find('\0', at);
    return in.substr(at, end == in.npos ? end : end - at);
  }

 private:
  const char* file_;
  size_t bytes_;
};

uint32_t uses_of(std::string_view code) {
  uint32_t uses = 0;
  for (size_t at = 0; at + kInstruction <= code.size(); at += kInstruction) {
    uint64_t low;
    memcpy(&low, code.data() + at, sizeof low);
    uses |= use_of(low);
  }
  return uses;
}

std::vector<KernelCode::Parameter> parameters_of(std::string_view info, size_t least) {
  std::vector<KernelCode::Parameter> out;
  for (size_t at = 0; at + 4 <= info.size();) {
    const auto format = static_cast<uint8_t>(info[at]);
    const auto attribute = static_cast<uint8_t>(info[at + 1]);
    uint16_t size = 0;
    memcpy(&size, info.data() + at + 2, sizeof size);
    at += 4;
    if (format != kSized) continue;
    if (size > info.size() - at) break;
    const bool usual = attribute == kParameter;
    if ((usual || attribute == kLongParameter) && size >= kParameterBytes) {
      uint16_t ordinal;
      uint32_t word;
      memcpy(&ordinal, info.data() + at + 4, sizeof ordinal);
      memcpy(&word, info.data() + at + 8, sizeof word);
      const uint32_t bytes = usual ? word >> 18 : word & 0xffff;
      if (bytes >= least) out.push_back({ordinal, bytes});
    }
    at += size;
  }
  return out;
}

std::string_view after(std::string_view name, std::string_view prefix) {
  return name.substr(0, prefix.size()) == prefix ? name.substr(prefix.size()) : std::string_view();
}

}  // namespace

bool read_cubin(const void* cubin, size_t bytes, bool all, CubinCode& out) {
  Elf64_Ehdr head;
  const Reader file(cubin, bytes);
  if (!cubin || !file.get(0, head) || memcmp(head.e_ident, ELFMAG, SELFMAG) != 0 ||
      head.e_ident[EI_CLASS] != ELFCLASS64 || head.e_machine != kMachineCuda) {
    return false;
  }
  std::vector<Elf64_Shdr> sections(head.e_shnum);
  for (size_t i = 0; i < sections.size(); ++i) {
    if (!file.get(head.e_shoff + i * sizeof(Elf64_Shdr), sections[i])) return false;
  }
  if (head.e_shstrndx >= sections.size()) return false;
  const Elf64_Shdr& strings = sections[head.e_shstrndx];
  const std::string_view names = file.part(strings.sh_offset, strings.sh_size);
  uint32_t shared = 0;  // of functions that are no kernels: who calls them is not looked for
  std::unordered_map<std::string_view, uint32_t> code;
  std::unordered_map<std::string_view, std::string_view> infos;
  for (const Elf64_Shdr& section : sections) {
    if (section.sh_type == SHT_NOBITS) continue;
    const std::string_view name = file.word(names, section.sh_name);
    const std::string_view part = file.part(section.sh_offset, section.sh_size);
    if (const auto function = after(name, ".text."); !function.empty()) {
      code[function] = uses_of(part);
    } else if (const auto kernel = after(name, ".nv.info."); !kernel.empty()) {
      infos[kernel] = part;
    } else if (const auto entry = after(name, ".nv.constant0."); !entry.empty()) {
      out[std::string(entry)];  // kernels alone have parameters' memory
    }
  }
  for (const auto& [name, uses] : code) {
    if (out.find(std::string(name)) == out.end()) shared |= uses;
  }
  for (auto kernel = out.begin(); kernel != out.end();) {
    const auto own = code.find(kernel->first);
    kernel->second.uses = shared | (own == code.end() ? 0 : own->second);
    const auto info = infos.find(kernel->first);
    if (info != infos.end()) {
      const size_t least = all ? sizeof(uint64_t) : kTensorMapBytes;
      kernel->second.parameters = parameters_of(info->second, least);
    }
    const bool plain = !all && kernel->second.uses == 0 && kernel->second.parameters.empty();
    kernel = plain ? out.erase(kernel) : std::next(kernel);
  }
  return true;
}

}  // namespace accel_trace
