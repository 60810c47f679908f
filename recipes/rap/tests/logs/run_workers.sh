mkdir data_4096
python data_prepare.py --batch_size=4096
python data_prepare.py --batch_size=8192

python workers.py --nDense=13 --nDev=2 --batch_size=4096 --preprocessing_plan=0  --sizes="1,2,3"
python workers.py --nDense=13 --nDev=2 --batch_size=4096 --preprocessing_plan=1 --nWorker=4
python workers.py --nDense=13 --nDev=2 --batch_size=8192 --preprocessing_plan=1 --nWorker=2 
