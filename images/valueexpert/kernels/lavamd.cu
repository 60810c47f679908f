// Charges are ten doubles, 0.1 to 1.0. after: a byte names which; eight times fewer bytes.
#include "mini.h"

KERNEL weigh(const double* charge, const double* place, double* out, int count) {
  const int n = THREAD;
  if (n < count) ST(out, n, LD(charge, n) * LD(place, n));
}

KERNEL weigh_coded(const uint8_t* code, const double* place, double* out, int count) {
  const int n = THREAD;
  if (n < count) ST(out, n, (LD(code, n) / 10.0) * LD(place, n));
}

Result mini(Device& device, const std::string& variant, int count) {
  Host<double> charge(count), place(count), out(count), wanted(count);
  Host<uint8_t> code(count);
  for (int n = 0; n < count; ++n) {
    code[n] = static_cast<uint8_t>(1 + hash_of(n) % 10);
    charge[n] = code[n] / 10.0;
    place[n] = any_double(n);
    wanted[n] = charge[n] * place[n];
  }
  double* device_place = device.alloc<double>(count, "places");
  double* device_out = device.alloc<double>(count, "forces");
  device.upload(device_place, place.data(), count, "upload places");
  if (variant == "after") {
    uint8_t* device_code = device.alloc<uint8_t>(count, "codes");
    device.upload(device_code, code.data(), count, "upload codes");
    RUN(device, weigh_coded, count, 256, device_code, device_place, device_out, count);
  } else {
    double* device_charge = device.alloc<double>(count, "charges");
    device.upload(device_charge, charge.data(), count, "upload charges");
    RUN(device, weigh, count, 256, device_charge, device_place, device_out, count);
  }
  device.download(out.data(), device_out, count, "download forces");
  Result result;
  result.take(out);
  result.compare(out, wanted);
  return result;
}
