# See images/docker-bake.hcl. What the arguments mean stands in the Dockerfile.
# NVIDIA GPUs only: there is no flavour cpu.

variable "CUDA_IMAGE" { default = "nvidia/cuda:12.1.1-devel-ubuntu22.04" }
variable "PASTA_MARCH" { default = "x86-64-v3" }
variable "HOTNESS_BLOCKS" { default = "as-is" }
variable "NV_COMPUTE_COMMIT" { default = "" }
variable "NV_NVBIT_COMMIT" { default = "" }
variable "NVBIT_URL" { default = "" }
variable "NVBIT_SHA256" { default = "" }

target "pasta-upstream-cuda" {
  inherits   = ["_image"]
  dockerfile = "pasta-upstream/Dockerfile"
  args = {
    BASE_IMAGE        = AE_BASE_IMAGE == "" ? AE_DEBIAN : AE_BASE_IMAGE
    CUDA_IMAGE        = CUDA_IMAGE
    MARCH             = PASTA_MARCH
    HOTNESS_BLOCKS    = HOTNESS_BLOCKS
    NV_COMPUTE_COMMIT = NV_COMPUTE_COMMIT
    NV_NVBIT_COMMIT   = NV_NVBIT_COMMIT
    NVBIT_URL         = NVBIT_URL
    NVBIT_SHA256      = NVBIT_SHA256
  }
  tags       = ["ae/pasta-upstream:cuda"]
  cache-from = AE_CACHE == "" ? [] : ["type=registry,ref=${AE_CACHE}/pasta-upstream:cuda"]
  labels = {
    "org.opencontainers.image.title"       = "ae/pasta-upstream"
    "org.opencontainers.image.description" = "The authors' own PASTA (AccelProf, branch cgo26) with its benchmarks"
    "org.opencontainers.image.licenses"    = "MIT AND Apache-2.0 AND LicenseRef-NVIDIA-CUDA-EULA"
  }
}
