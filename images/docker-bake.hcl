# How every image is built: what they share, and the base. Each image adds its own targets in
# images/<name>/bake.hcl, named <name>-<flavour>. `ae build` reads this; a person without it types
#
#   docker buildx bake -f images/docker-bake.hcl -f images/dlrm/bake.hcl dlrm-cpu
#
# Variables are set in the environment.

variable "AE_BASE_IMAGE" { default = "" } # build on this image; empty: on our own base
variable "AE_DEBIAN" { default = "debian:bookworm-slim" } # what our own base is made from
variable "AE_WHEELS" { default = "" } # a folder of wheels that pip looks into first
variable "AE_CA_BUNDLE" { default = "" } # certificates for builds behind a TLS-inspecting proxy
variable "AE_CACHE" { default = "" } # a registry whose images serve as cache, e.g. host:5000/ae
variable "AE_REVISION" { default = "" } # git revision of the sources
variable "AE_SOURCE" { default = "" } # where the sources are published
variable "HTTP_PROXY" { default = "" }
variable "HTTPS_PROXY" { default = "" }
variable "NO_PROXY" { default = "" }

# Every image. The proxy arguments are predefined: they stay in no layer and no history.
target "_image" {
  context  = "images"
  contexts = AE_WHEELS == "" ? {} : { wheels = AE_WHEELS }
  secret   = AE_CA_BUNDLE == "" ? [] : ["id=ca,src=${AE_CA_BUNDLE}"]
  cache-to = AE_CACHE == "" ? [] : ["type=inline"] # the pushed image is the next build's cache
  args = {
    HTTP_PROXY  = HTTP_PROXY == "" ? null : HTTP_PROXY
    HTTPS_PROXY = HTTPS_PROXY == "" ? null : HTTPS_PROXY
    NO_PROXY    = NO_PROXY == "" ? null : NO_PROXY
  }
  labels = {
    "org.opencontainers.image.revision" = AE_REVISION
    "org.opencontainers.image.source"   = AE_SOURCE
    "org.opencontainers.image.licenses" = "Apache-2.0"
    "org.opencontainers.image.vendor"   = "ae"
  }
}

# An image of ours: on our base, or on the one that a person names.
target "_native" {
  name     = "_native-${flavour}"
  matrix   = { flavour = ["cpu", "cuda"] }
  inherits = ["_image"]
  contexts = AE_BASE_IMAGE == "" ? { ae-base = "target:base-${flavour}" } : {}
  args = {
    FLAVOUR    = flavour
    BASE_IMAGE = AE_BASE_IMAGE == "" ? "ae-base" : AE_BASE_IMAGE
  }
}

target "base" {
  name       = "base-${flavour}"
  matrix     = { flavour = ["cpu", "cuda"] }
  inherits   = ["_image"]
  dockerfile = "base/Dockerfile"
  args       = { FLAVOUR = flavour, BASE_IMAGE = AE_DEBIAN }
  tags       = ["ae/base:${flavour}"]
  cache-from = AE_CACHE == "" ? [] : ["type=registry,ref=${AE_CACHE}/base:${flavour}"]
  labels     = { "org.opencontainers.image.title" = "ae/base", "org.opencontainers.image.description" = "Debian with Python, for the images of ae" }
}
