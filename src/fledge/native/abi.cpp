// The sizes of structures and the limits that native/abi.py says, too, for it to compare when the library is loaded.
#include "round.h"
#include "screen.h"

using namespace fledge;

#define SIZE_OF(structure) {"sizeof(" #structure ")", sizeof(structure)}

extern "C" {

struct Mirrored {
  const char* name;
  int64_t value;
};

// Ends with a null name.
const Mirrored* fledge_mirrored() {
  static const Mirrored all[] = {
      SIZE_OF(Shape), SIZE_OF(Layer), SIZE_OF(Batch),
      SIZE_OF(Decoder), SIZE_OF(Screen), SIZE_OF(DecoderOutputs), SIZE_OF(DraftHead), SIZE_OF(HeadOutputs),
      SIZE_OF(RoundModels), SIZE_OF(CarriedState), SIZE_OF(Drawing), SIZE_OF(DraftTerms), SIZE_OF(DraftOffsets), SIZE_OF(Drafts),
      SIZE_OF(Recent), SIZE_OF(Hooks), SIZE_OF(Accepted),
      {"PAGE_SIZE", kPage}, {"MOST_NODES", kMostNodes}, {"MOST_THREADS", Team::kMaxThreads},
      {"PANEL", kPanel}, {"MOST_PARTS", Weight::kMostParts},
      {"AHEAD", kAhead}, {"MOST_HEAD_VECTORS", kMostHeadVectors},
      {"MOST_CANDIDATES", kMostCandidates}, {"LOOKUP_SOURCE", kLookupSource},
      {"HEAD_TEMPERATURE_PERCENT", kHeadTemperaturePercent},
      {nullptr, 0},
  };
  return all;
}

}  // extern "C"
