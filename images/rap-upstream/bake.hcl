# See images/docker-bake.hcl. What the arguments mean stands in the Dockerfile.
# NVIDIA GPUs only: there is no flavour cpu.

variable "RAP_IMAGE" { default = "debian:bookworm-slim" } # a stand-in: the build stops at it
variable "RAP_COMMIT" { default = "48e69f6f2bb3f6ed2ee9a4f311c95263b0cc4f11" }
variable "RAP_ARCHS" { default = "8.0" }
variable "TORCHARROW" { default = "0" }

target "rap-upstream-cuda" {
  inherits   = ["_image"]
  dockerfile = "rap-upstream/Dockerfile"
  args = {
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
