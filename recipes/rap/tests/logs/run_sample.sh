mkdir result
nvidia-smi -i 0,1 -c EXCLUSIVE_PROCESS
nvidia-cuda-mps-control -d
for BATCH_SIZE in 4096 8192
do
    python data_prepare.py --batch_size=$BATCH_SIZE --nDev=2 --plan=0
    python train.py --nDev=2 --batch_size=$BATCH_SIZE --preprocessing_plan=0 --sizes="1,2,3"

    python data_prepare.py --batch_size=$BATCH_SIZE --nDev=4 --plan=0
    python train.py --nDev=4 --batch_size=$BATCH_SIZE --preprocessing_plan=0

    python data_prepare.py --batch_size=$BATCH_SIZE --nDev=4 --plan=1
    python train.py --nDev=4 --batch_size=$BATCH_SIZE --preprocessing_plan=1
done
nvidia-smi -i 0,1 -c DEFAULT
