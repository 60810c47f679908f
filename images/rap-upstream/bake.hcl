# See images/docker-bake.hcl. What the arguments mean stands in the Dockerfile.
# NVIDIA GPUs only: there is no flavour cpu.

variable "RAP_IMAGE" { default = "debian:bookworm-slim" } # a stand-in: the build stops at it
variable "RAP_COMMIT" { default = "4dce8ac8f9a3287de25f65d4087bf68f41ca6f73" }
variable "RAP_ARCHS" { default = "8.0" }
variable "TORCHARROW" { default = "0" }

target "rap-upstream-cuda" {
  inherits   = ["_image"]
  dockerfile = "rap-upstream/Dockerfile"
  args = {
    BASE_IMAGE = AE_BASE_IMAGE == "" ? AE_DEBIAN : AE_BASE_IMAGE
    RAP_IMAGE  = RAP_IMAGE
    RAP_COMMIT = RAP_COMMIT
    RAP_ARCHS  = RAP_ARCHS
    TORCHARROW = TORCHARROW
  }
  tags       = ["ae/rap-upstream:cuda"]
  cache-from = AE_CACHE == "" ? [] : ["type=registry,ref=${AE_CACHE}/rap-upstream:cuda"]
  labels = {
    "ae.build.disk"                        = "60GB"
    "org.opencontainers.image.title"       = "ae/rap-upstream"
    "org.opencontainers.image.description" = "The authors' own RAP: preprocessing that shares the GPU with recommendation training"
    "org.opencontainers.image.licenses"    = "LicenseRef-RAP-artifacts AND BSD-3-Clause AND Apache-2.0"
  }
}
