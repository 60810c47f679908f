# See images/docker-bake.hcl. What the arguments mean stands in the Dockerfile.
# NVIDIA GPUs only: there is no flavour cpu.

variable "GVPROF_CUDA_IMAGE" { default = "nvidia/cuda:11.8.0-devel-ubuntu22.04" }
variable "GVPROF_COMMIT" { default = "cdad0d4fba3739186635dc93754ae7659cf7d046" }
variable "GVPROF_ARCHS" { default = "70 75 80 90" }

target "valueexpert-upstream-cuda" {
  inherits   = ["_image"]
  dockerfile = "valueexpert-upstream/Dockerfile"
  args = {
    CUDA_IMAGE    = GVPROF_CUDA_IMAGE
    GVPROF_COMMIT = GVPROF_COMMIT
    ARCHS         = GVPROF_ARCHS
  }
  tags       = ["ae/valueexpert-upstream:cuda"]
  cache-from = AE_CACHE == "" ? [] : ["type=registry,ref=${AE_CACHE}/valueexpert-upstream:cuda"]
  labels = {
    "ae.build.disk"                        = "30GB"
    "org.opencontainers.image.title"       = "ae/valueexpert-upstream"
    "org.opencontainers.image.description" = "The authors' own GVProf with ValueExpert's analyses, and its samples"
    "org.opencontainers.image.licenses"    = "MIT AND BSD-3-Clause AND LicenseRef-NVIDIA-CUDA-EULA"
  }
}
