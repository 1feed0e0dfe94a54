// SPDX-License-Identifier: MIT
// From what was recorded of each launch to what a profiler's counters should read, and the program's --trace. The model
// of the caches is described in README.md.

#include <link.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>

#include "trace.h"

namespace cuda_cpu {

namespace {

const char* const kAccessNames[] = {"load", "store", "atomic", "async copy"};
const char* const kSpaceNames[] = {"global", "shared"};

// ---- The caches ---------------------------------------------------------------------------------

struct Bytes {
  double requested = 0;  // by the lanes, of global memory
  double compulsory = 0;  // distinct bytes
  double l1 = 0;
  double l2 = 0;
  double dramRead = 0;
  double dramWrite = 0;
};

// What some blocks touch of one allocation; every number in bytes.
struct Share {
  double distinct = 0;
  double sectors = 0;
  double fetched = 0;
  double written = 0;  // whole sectors
  double filled = 0;  // sectors that were written in part and have to be completed from DRAM
  uintptr_t first = UINTPTR_MAX, last = 0;  // sectors, by address / kSectorBytes
};

// Shares by the allocation's number, of blocks that find what others of them brought.
std::vector<Share> sharesOf(const Footprint& footprint, const std::vector<Allocation>& allocations) {
  const unsigned fetch = environment().device.card->fetchBytes / kSectorBytes;
  std::vector<Share> shares(allocations.size());
  for (const auto& [sector, touched] : footprint) {
    const char* address = reinterpret_cast<const char*>(sector * kSectorBytes);
    size_t i = 0;
    while (address + kSectorBytes <= allocations[i].start || address >= allocations[i].end()) ++i;
    Share& share = shares[i];
    share.distinct += __builtin_popcount(touched.read | touched.written);
    share.sectors += kSectorBytes;
    share.first = std::min(share.first, sector);
    share.last = std::max(share.last, sector);
    if (touched.written) share.written += kSectorBytes;
    if (touched.written && !touched.read && ~touched.written) share.filled += kSectorBytes;
    if (!touched.read) continue;
    bool first = true;  // of the sectors that one fetch brings
    for (uintptr_t other = sector / fetch * fetch; other < sector; ++other) {
      const auto found = footprint.find(other);
      first = first && (found == footprint.end() || !found->second.read);
    }
    if (first) share.fetched += fetch * kSectorBytes;
  }
  return shares;
}

// What is known of one number of all runs: each on its own, and together.
struct Total {
  double each = 0;  // if every run brings all of its own
  double together = 0;  // if it finds what others brought
};

// A further run brings as much that is new as the traced ones did on average, up to what there is.
Total extrapolate(double sum, double united, double traced, double runs, double size) {
  const double mean = sum / traced;
  const double fresh = traced > 1 ? (united - mean) / (traced - 1) : 0;
  return {runs * mean, std::min(size, mean + (runs - 1) * fresh)};
}

Bytes predict(const Traffic& traffic, double scale) {
  Footprint whole;
  for (const auto& [run, footprint] : traffic.footprints) {
    for (const auto& [sector, touched] : footprint) whole[sector] += touched;
  }
  const Card& card = *environment().device.card;

  Bytes bytes;
  double missed = scale * static_cast<double>(traffic.l1Misses);
  for (const auto& [key, counts] : traffic.instructions) {
    if (key.space != Space::kGlobal) continue;
    const double sectors = scale * static_cast<double>(counts.sectors);
    bytes.requested += scale * static_cast<double>(counts.bytes);
    bytes.l1 += kSectorBytes * sectors;
    if (key.access == Access::kStore || key.access == Access::kAtomic) missed += sectors;
  }
  // What every block reads, the first block of an SM brings for the others of that SM.
  const double blocks = static_cast<double>(traffic.blocks);
  const double found = blocks - std::min<double>(blocks, card.sms);
  for (const auto& [sector, touched] : whole) missed -= touched.readers == traffic.traced ? found : 0;
  bytes.l2 = kSectorBytes * missed;

  const double runs = std::ceil(blocks / kNeighbours);
  const double traced = static_cast<double>(traffic.footprints.size());
  std::vector<std::vector<Share>> ofRuns;
  for (const auto& [run, footprint] : traffic.footprints) ofRuns.push_back(sharesOf(footprint, traffic.allocations));
  const std::vector<Share> united = sharesOf(whole, traffic.allocations);
  // The stretch that is touched: a little longer than the one between the outermost of n runs, by 2 of n - 1 parts.
  const auto sizeOf = [&](size_t i) {
    const double between = kSectorBytes * (1.0 + united[i].last - united[i].first);
    const double size = traced > 1 ? between * (traced + 1) / (traced - 1) : between;
    return std::min(size, static_cast<double>(traffic.allocations[i].bytes));
  };
  const auto total = [&](size_t i, double Share::*number) {
    if (united[i].sectors == 0) return Total{};
    double sum = 0;
    for (const std::vector<Share>& shares : ofRuns) sum += shares[i].*number;
    return extrapolate(sum, united[i].*number, traced, runs, sizeOf(i));
  };
  const double l2 = card.l2Bytes / card.l2Copies;
  double all = 0;  // bytes that pass through the L2
  double again = 0;  // and those of them that several runs touch
  for (size_t i = 0; i < united.size(); ++i) {
    const Total sectors = total(i, &Share::sectors);
    all += sectors.together;
    if (sectors.each > 1.01 * sectors.together) again += sectors.together;
  }
  const auto moved = [&](const Total& amount) { return again <= l2 ? amount.together : amount.each; };
  for (size_t i = 0; i < united.size(); ++i) {
    bytes.compulsory += total(i, &Share::distinct).together;
    bytes.dramRead += moved(total(i, &Share::fetched));
    bytes.dramWrite += moved(total(i, &Share::written));
    if (all > l2) bytes.dramRead += moved(total(i, &Share::filled));
  }
  // What is written last stays in the L2 when the kernel ends, as far as there is room beside what was read.
  const double both = bytes.dramRead + bytes.dramWrite;
  if (both > 0) bytes.dramWrite -= std::min(bytes.dramWrite, all <= l2 ? l2 : l2 * bytes.dramWrite / both);
  return bytes;
}

// ---- Output -------------------------------------------------------------------------------------

std::string quoted(const std::string& text) {
  std::string result = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') result += '\\';
    result += c;
  }
  return result + "\"";
}

// One JSON line.
class Line {
 public:
  explicit Line(const char* record) { text("record", record); }
  Line& text(const std::string& key, const std::string& value) { return raw(key, quoted(value)); }
  Line& number(const std::string& key, double value) { return raw(key, std::to_string(std::llround(value))); }
  Line& raw(const std::string& key, const std::string& value) {
    body_ += (body_.empty() ? "{" : ",") + quoted(key) + ":" + value;
    return *this;
  }
  void print() const { std::printf("%s}\n", body_.c_str()); }

 private:
  std::string body_;
};

std::string listOf(const dim3& size) {
  return "[" + std::to_string(size.x) + "," + std::to_string(size.y) + "," + std::to_string(size.z) + "]";
}

std::string grouped(double value) {
  std::string digits = std::to_string(std::llround(value));
  for (int at = static_cast<int>(digits.size()) - 3; at > 0; at -= 3) digits.insert(at, ",");
  return digits;
}

struct LineKey {
  std::string line;
  Space space;
  Access access;
  bool operator<(const LineKey& other) const {
    return std::tie(line, space, access) < std::tie(other.line, other.space, other.access);
  }
};

void printJson(
    const Traffic& traffic, size_t launch, const std::map<LineKey, Counts>& lines, const Bytes& bytes, double scale) {
  std::map<std::pair<Space, Access>, Counts> totals;
  for (const Space space : {Space::kGlobal, Space::kShared})
    totals[{space, Access::kLoad}], totals[{space, Access::kStore}];
  for (const auto& [key, counts] : lines) totals[{key.space, key.access}] += counts;
  const auto count = [&](Line& line, const std::string& prefix, Space space, const Counts& counts) {
    line.number(prefix + "requests", scale * counts.requests).number(prefix + "bytes", scale * counts.bytes);
    if (space == Space::kGlobal) {
      line.number(prefix + "sectors", scale * counts.sectors);
    } else {
      line.number(prefix + "wavefronts", scale * counts.wavefronts);
      line.number(prefix + "conflicts", scale * (counts.wavefronts - counts.ideal));
    }
  };
  Line line("traffic");
  line.number("launch", launch).text("kernel", traffic.kernel).text("symbol", traffic.symbol);
  line.text("card", environment().device.key).raw("grid", listOf(traffic.grid)).raw("block", listOf(traffic.block));
  line.number("blocks", traffic.blocks).number("traced", traffic.traced);
  for (const auto& [key, counts] : totals) {
    std::string name = std::string(kSpaceNames[int(key.first)]) + "_" + kAccessNames[int(key.second)] + "_";
    std::replace(name.begin(), name.end(), ' ', '_');
    count(line, name, key.first, counts);
  }
  line.number("requested_bytes", bytes.requested).number("compulsory_bytes", bytes.compulsory);
  line.number("l1_bytes", bytes.l1).number("l2_bytes", bytes.l2);
  line.number("dram_read_bytes", bytes.dramRead).number("dram_write_bytes", bytes.dramWrite).print();
  for (const auto& [key, counts] : lines) {
    Line one("traffic-line");
    one.number("launch", launch).text("kernel", traffic.kernel).text("line", key.line);
    one.text("space", kSpaceNames[int(key.space)]).text("access", kAccessNames[int(key.access)]);
    count(one, "", key.space, counts);
    one.print();
  }
}

void printTable(const Traffic& traffic, const std::map<LineKey, Counts>& lines, const Bytes& bytes, double scale) {
  const Text runs =
      textOf("%llu of %llu blocks, in runs of %llu neighbours", static_cast<unsigned long long>(traffic.traced),
          static_cast<unsigned long long>(traffic.blocks), static_cast<unsigned long long>(kNeighbours));
  const bool exact = traffic.traced == traffic.blocks;
  std::printf("\n%s, grid %s, block %s: %s\n", traffic.kernel.c_str(), textOf(traffic.grid).chars,
      textOf(traffic.block).chars, exact ? "exact, all blocks" : runs.chars);
  std::printf("  %-28s %-18s %14s %11s %16s %14s %14s\n", "line", "access", "requests", "sectors/req",
      "requested bytes", "wavefronts", "conflicts");
  for (const auto& [key, counts] : lines) {
    const std::string what = std::string(kSpaceNames[int(key.space)]) + " " + kAccessNames[int(key.access)];
    std::printf("  %-28s %-18s %14s ", key.line.c_str(), what.c_str(), grouped(scale * counts.requests).c_str());
    if (key.space == Space::kGlobal) {
      std::printf("%11.2f %16s\n", 1.0 * counts.sectors / counts.requests, grouped(scale * counts.bytes).c_str());
    } else {
      std::printf("%11s %16s %14s %14s\n", "", grouped(scale * counts.bytes).c_str(),
          grouped(scale * counts.wavefronts).c_str(), grouped(scale * (counts.wavefronts - counts.ideal)).c_str());
    }
  }
  std::printf(
      "  requested %.3f MB, compulsory %.3f MB; predicted: L1 %.3f MB, L2 %.3f MB, DRAM read %.3f MB, write %.3f MB\n",
      bytes.requested * 1e-6, bytes.compulsory * 1e-6, bytes.l1 * 1e-6, bytes.l2 * 1e-6, bytes.dramRead * 1e-6,
      bytes.dramWrite * 1e-6);
}

// Prints everything; returns how many findings there were.
size_t report(bool json) {
  std::vector<uintptr_t> pcs;
  for (const Traffic& traffic : allTraffic()) {
    for (const auto& [key, counts] : traffic.instructions) pcs.push_back(key.pc);
    for (const Finding& finding : traffic.findings) {
      pcs.push_back(finding.first);
      pcs.push_back(finding.second);
    }
  }
  std::sort(pcs.begin(), pcs.end());
  pcs.erase(std::unique(pcs.begin(), pcs.end()), pcs.end());
  const std::vector<std::string> texts = sourceLines(pcs);
  const auto lineOf = [&](uintptr_t pc) { return texts[std::lower_bound(pcs.begin(), pcs.end(), pc) - pcs.begin()]; };

  size_t found = 0;
  for (size_t launch = 0; launch < allTraffic().size(); ++launch) {
    const Traffic& traffic = allTraffic()[launch];
    const double scale = static_cast<double>(traffic.blocks) / static_cast<double>(traffic.traced);
    std::map<LineKey, Counts> lines;
    for (const auto& [key, counts] : traffic.instructions) lines[{lineOf(key.pc), key.space, key.access}] += counts;
    if (json) {
      printJson(traffic, launch, lines, predict(traffic, scale), scale);
    } else {
      printTable(traffic, lines, predict(traffic, scale), scale);
    }
    std::set<uintptr_t> racing;  // instructions: what they read unwritten, a race may write later
    for (const Finding& finding : traffic.findings) {
      if (finding.second != 0) racing.insert({finding.first, finding.second});
    }
    std::set<std::string> told;  // inlining makes several instructions of one line
    for (const Finding& finding : traffic.findings) {
      if (finding.second == 0 && racing.count(finding.first) != 0) continue;
      std::string text = finding.text;
      std::string where;
      bool inKernel = true;
      for (const auto& [mark, pc] : {std::pair{"@1", finding.first}, std::pair{"@2", finding.second}}) {
        const size_t at = text.find(mark);
        if (at == std::string::npos) continue;
        const std::string line = lineOf(pc);
        inKernel = inKernel && !line.empty();
        text.replace(at, 2, line);
        where += line + " ";
      }
      if (!inKernel || !told.insert(where).second) continue;
      ++found;
      say("kernel %s, %s", traffic.kernel.c_str(), text.c_str());
      if (json) Line("finding").number("launch", launch).text("kernel", traffic.kernel).text("what", text).print();
    }
  }
  std::fflush(stdout);
  return found;
}

}  // namespace

std::vector<std::string> sourceLines(const std::vector<uintptr_t>& pcs) {
  uintptr_t base = 0;
  dl_iterate_phdr(
      [](dl_phdr_info* module, size_t, void* result) {
        *static_cast<uintptr_t*>(result) = module->dlpi_addr;
        return 1;  // the program is the first module
      },
      &base);
  std::vector<std::string> lines;
  constexpr size_t kAtOnce = 1000;  // that fit on a command line
  for (size_t first = 0; first < pcs.size(); first += kAtOnce) {
    // The parent's /proc/self: addr2line itself would look into its own.
    std::string command = "addr2line -a -i -e /proc/" + std::to_string(getpid()) + "/exe";
    const size_t last = std::min(pcs.size(), first + kAtOnce);
    for (size_t i = first; i < last; ++i) command += textOf(" %zx", pcs[i] - base - 1).chars;  // within the call
    FILE* pipe = popen(command.c_str(), "r");
    if (!pipe) fail("addr2line (binutils) cannot be started");
    char text[4096];
    while (std::fgets(text, sizeof text, pipe)) {
      if (std::strncmp(text, "0x", 2) == 0) {
        lines.emplace_back();
        continue;
      }
      // Innermost first: the first frame that is the lesson's own.
      std::string frame(text, std::strcspn(text, "\n"));
      frame.resize(std::min(frame.size(), frame.find(" (discriminator ")));
      if (!lines.back().empty() || frame.find(".cu:") == std::string::npos) continue;
      lines.back() = frame.substr(frame.rfind('/') + 1);
    }
    pclose(pipe);
    if (lines.size() != last) fail("addr2line (binutils) does not answer: without it no source line can be named");
  }
  return lines;
}

}  // namespace cuda_cpu

// ---- --trace ------------------------------------------------------------------------------------

extern "C" int __real_main(int argc, char** argv);

// The linker puts this before the program's own main (--wrap=main). --trace makes the program run its --profile, which
// launches each kernel once, and reports; --card and --json belong to it. Without --trace nothing changes.
extern "C" int __wrap_main(int argc, char** argv) {
  using namespace cuda_cpu;
  const auto is = [](const char* argument, const char* name) { return std::strcmp(argument, name) == 0; };
  if (std::none_of(argv + 1, argv + argc, [&](const char* argument) { return is(argument, "--trace"); })) {
    const int code = __real_main(argc, argv);
    if (std::any_of(argv + 1, argv + argc, [&](const char* argument) { return is(argument, "--help"); }))
      std::printf("\nthis build also takes --trace [--card NAME] [--json]: predicts the traffic of each kernel\n");
    return code;
  }
  std::vector<char*> rest = {argv[0]};
  static char profile[] = "--profile";
  bool json = false;
  for (int i = 1; i < argc; ++i) {
    if (is(argv[i], "--trace")) {
      rest.push_back(profile);
    } else if (is(argv[i], "--json")) {
      json = true;
    } else if (is(argv[i], "--card")) {
      if (++i == argc) {
        std::fprintf(stderr, "--card: the name of a card is missing\n");
        return 2;
      }
      pretend(argv[i], "--card");
    } else {
      rest.push_back(argv[i]);
    }
  }
  rest.push_back(nullptr);
  environment().seed = environment().seedGiven ? environment().seed : 1;  // the same lines every time
  environment().seedGiven = true;
  const int output = dup(STDOUT_FILENO);
  if (json && !std::freopen("/dev/null", "w", stdout)) fail("/dev/null cannot be opened");
  startTracing();
  const int code = __real_main(static_cast<int>(rest.size()) - 1, rest.data());
  std::fflush(stdout);
  if (json) dup2(output, STDOUT_FILENO);
  close(output);
  if (code != 0) return code;
  const size_t findings = report(json);
  if (std::ferror(stdout)) return 1;
  return findings == 0 ? 0 : 1;
}
