mkdir result
nvidia-smi -i 0,1 -c EXCLUSIVE_PROCESS
nvidia-cuda-mps-control -d

python data_prepare.py --preprocessing_plan=0 --nDev=4 --batch_size=4096
python /made/GPU_4_plan_0.py --nDev=4 --batch_size=4096 --preprocessing_plan=0 --sizes="1,2,3" 

python data_prepare.py --preprocessing_plan=1 --nDev=4 --batch_size=4096
python /made/GPU_4_plan_1.py --nDev=4 --batch_size=4096 --preprocessing_plan=1

python data_prepare.py --preprocessing_plan=0 --nDev=4 --batch_size=8192
python /made/GPU_4_plan_0.py --nDev=4 --batch_size=8192 --preprocessing_plan=0 --sizes="1,2,3" 

python data_prepare.py --preprocessing_plan=1 --nDev=4 --batch_size=8192
python /made/GPU_4_plan_1.py --nDev=4 --batch_size=8192 --preprocessing_plan=1
echo quit | nvidia-cuda-mps-control
nvidia-smi -i 0,1 -c DEFAULT
