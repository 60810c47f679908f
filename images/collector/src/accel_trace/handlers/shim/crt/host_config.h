// Stands in for the toolkit's file of this name where only the runtime wheel is installed.
// The hooks use declarations and types of the CUDA runtime, no device code.
#pragma once
